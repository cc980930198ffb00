"""Measures what a newcomer gets: each algorithm with its defaults, on tasks that nobody tuned it for, beside SB3's.

    make benchmark-first-contact [ONLY="cartpole pendulum"] [ARGS="--seeds 3 --algorithms ppo,appo,sb3-ppo"]

A run is `rollcast train --env-id ... --algorithm ... --total-steps ... --seed ...` and nothing else, but for a memory
and its first settings where the task needs one; theirs is `PPO("MlpPolicy", env).learn(...)`. `advised` is the row of
the table in docs/howto/choose_algorithm.md with its first settings.
Both take the same steps: as many as fit into about a minute of one core, fewer for algorithms with a replay buffer,
which compute longer for each. Afterwards the last policy plays 20 episodes with its likeliest actions and 20 with drawn
ones, from seeds that training did not have; the better mean counts, for both systems. A run that fails counts, with its
reason.

Each run is written to the file of results as soon as it has ended, and the next call leaves out what is there. Below
the table stand the marks: on how many tasks the default and the advice are level with SB3's, and which runs fail them.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.table import Figure, print_table
from rollcast.learner.algorithms.defaults import DEFAULT_ALGORITHM

TASKS_MODULE: Final = "benchmarks.first_contact_tasks"
ADVISED: Final = "advised"
ROLLCAST: Final = ("impala", "ppo", "appo", "sac", "dqn", "r2d2", ADVISED)
PEERS: Final = ("sb3-ppo", "sb3-dqn", "sb3-sac")
FROM_REPLAY: Final = ("sac", "dqn", "r2d2", "sb3-dqn", "sb3-sac")
EPISODES: Final = 20
EVALUATION_SEED: Final = 987_654
# A run that takes longer has failed: its budget is about a minute.
MOST_S: Final = 900.0
# Ours is level if its median is at most so much below theirs: a share of theirs, or an amount.
LEVEL_SHARE: Final = 0.05
LEVEL_AMOUNT: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task.

    Attributes:
        env_id: As for `rollcast train`.
        steps: Environment steps of algorithms without a replay buffer.
        dear_steps: Those of the others.
        actions: "discrete" or "box".
        random: The mean return of random actions, over 40 episodes; runs below it are counted.
        solved: The mean return from which on it is solved; None: nobody says.
        env_kwargs: Keyword arguments of the environment.
        options: What a newcomer must say besides, by algorithm.
        peer_env_id: The environment of peers, if it is another one; empty: none of theirs fits.
    """

    env_id: str
    steps: int
    dear_steps: int
    actions: str = "discrete"
    random: float
    solved: float | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    peer_env_id: str | None = None


_MEMORY: Final = {
    "impala": ("--recurrence", "gru"),
    "ppo": ("--recurrence", "gru", "--ppo.learning-rate", "3e-3", "--ppo.entropy-cost", "0.01"),
    "appo": ("--recurrence", "gru", "--appo.learning-rate", "3e-3", "--appo.entropy-cost", "0.01"),
}
TASKS: Final = {
    "cartpole": Task(env_id="CartPole-v1", steps=100_000, dear_steps=30_000, random=23, solved=475),
    "acrobot": Task(env_id="Acrobot-v1", steps=100_000, dear_steps=30_000, random=-500, solved=-100),
    "pendulum": Task(env_id="Pendulum-v1", steps=100_000, dear_steps=10_000, actions="box", random=-1195, solved=-200),
    "mountaincar-continuous": Task(
        env_id="MountainCarContinuous-v0", steps=100_000, dear_steps=10_000, actions="box", random=-33, solved=90
    ),
    "lunarlander": Task(env_id="LunarLander-v3", steps=150_000, dear_steps=30_000, random=-205, solved=200),
    "lunarlander-continuous": Task(
        env_id="LunarLander-v3",
        env_kwargs={"continuous": True},
        steps=150_000,
        dear_steps=10_000,
        actions="box",
        random=-197,
        solved=200,
    ),
    "frozenlake": Task(env_id="FrozenLake-v1", steps=100_000, dear_steps=30_000, random=0.0, solved=0.7),
    "cliffwalking": Task(
        env_id="CliffWalking-v1",
        env_kwargs={"max_episode_steps": 500},
        steps=100_000,
        dear_steps=30_000,
        random=-4766,
        solved=-20,
    ),
    "taxi-masked": Task(
        env_id="rollcast.actor.environments.action_mask:make",
        env_kwargs={"env_id": "Taxi-v4"},
        peer_env_id="Taxi-v4",
        steps=100_000,
        dear_steps=30_000,
        random=-173,
        solved=7,
    ),
    "door-key": Task(env_id=f"{TASKS_MODULE}:door_key", steps=100_000, dear_steps=30_000, random=0.01, solved=0.9),
    "cartpole-x1000": Task(
        env_id=f"{TASKS_MODULE}:cartpole_large", steps=100_000, dear_steps=30_000, random=23, solved=475
    ),
    "cartpole-x0.01": Task(
        env_id=f"{TASKS_MODULE}:cartpole_small", steps=100_000, dear_steps=30_000, random=23, solved=475
    ),
    "t-maze": Task(
        env_id=f"{TASKS_MODULE}:TMaze", options=_MEMORY, steps=100_000, dear_steps=30_000, random=0.2, solved=3.9
    ),
    "repeat-previous": Task(
        env_id=f"{TASKS_MODULE}:RepeatPrevious",
        options=_MEMORY,
        steps=250_000,
        dear_steps=30_000,
        random=12.7,
        solved=45,
    ),
    "breakout": Task(env_id=f"{TASKS_MODULE}:breakout", steps=150_000, dear_steps=30_000, random=0.55),
    "simple-spread": Task(
        env_id="mpe2.simple_spread_v3:parallel_env",
        env_kwargs={"N": 3, "local_ratio": 0.5},
        peer_env_id="",
        steps=300_000,
        dear_steps=30_000,
        random=-28,
    ),
}


def advised(task: Task) -> tuple[str, Sequence[str]]:
    """Returns what the table of docs/howto/choose_algorithm.md advises: the algorithm, and its first settings."""
    settings = ("--ppo.entropy-cost", "0.01") if task.actions == "discrete" else ()
    return "ppo", task.options.get("ppo", settings)


def fits(task: Task, algorithm: str) -> bool:
    """Returns whether an algorithm can learn the task at all: its actions, and a memory."""
    name = algorithm.removeprefix("sb3-")
    if algorithm in PEERS and task.peer_env_id == "":
        return False
    if name == "r2d2":
        return task.actions == "discrete" and bool(task.options)
    if name in ("sac", "dqn") and task.options:
        return False
    return name != ("sac" if task.actions == "discrete" else "dqn")


def train_ours(task: Task, algorithm: str, seed: int, folder: Path) -> dict[str, float]:
    """Trains and evaluates with rollcast's commands; returns the mean returns by the kind of actions."""
    run, figures = folder / "run", folder / "figures.json"
    steps = task.dear_steps if algorithm in FROM_REPLAY else task.steps
    options = task.options.get(algorithm, ())
    if algorithm == ADVISED:
        algorithm, options = advised(task)
    command = [sys.executable, "-m", "rollcast.learner"]
    environment = ["--env-id", task.env_id, "--env-kwargs", json.dumps(dict(task.env_kwargs))]
    subprocess.run(
        [
            *(*command, "train", *environment, "--algorithm", algorithm, "--total-steps", str(steps)),
            *("--seed", str(seed), "--run-dir", str(run), "--address", "localhost:0", "--stop-return", "1e9", *options),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=MOST_S,
    )
    actions = "likeliest" if algorithm in ("dqn", "r2d2") else "both"
    evaluation = ["--saved-policy", "last", "--n-episodes", str(EPISODES), "--seed", str(EVALUATION_SEED)]
    subprocess.run(
        [*command, "evaluate", str(run), *evaluation, "--eval-actions", actions, "--summary-json", str(figures)],
        check=True,
        capture_output=True,
        text=True,
        timeout=MOST_S,
    )
    played = json.loads(figures.read_text())
    by_actions = played.get("by_actions", {"likeliest": played})
    return {kind: one["mean"] for kind, one in by_actions.items()}


def train_theirs(task: Task, algorithm: str, seed: int) -> dict[str, float]:
    """Trains and evaluates with Stable-Baselines3 in a process of its own."""
    given = json.dumps(
        {
            "env_id": task.peer_env_id or task.env_id,
            "env_kwargs": {} if task.peer_env_id else dict(task.env_kwargs),
            "algorithm": algorithm.removeprefix("sb3-").upper(),
            "steps": task.dear_steps if algorithm in FROM_REPLAY else task.steps,
            "seed": seed,
        }
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_contact", "--play", given],
        check=True,
        capture_output=True,
        text=True,
        timeout=MOST_S,
    )
    means: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return means


def play_theirs(given: Mapping[str, Any]) -> None:
    """Trains with Stable-Baselines3's defaults in this process; prints the mean returns as JSON."""
    import gymnasium
    import stable_baselines3
    import torch
    from stable_baselines3.common.evaluation import evaluate_policy

    from rollcast.actor.environments.make import EnvironmentFactory, make_single_env

    torch.set_num_threads(1)

    def make() -> gymnasium.Env[Any, Any]:
        env = make_single_env(EnvironmentFactory(given["env_id"], given["env_kwargs"]))
        assert isinstance(env, gymnasium.Env)
        return env

    model = getattr(stable_baselines3, given["algorithm"])("MlpPolicy", make(), seed=given["seed"], device="cpu")
    model.learn(given["steps"])
    means = {}
    for kind, deterministic in (("likeliest", True), ("drawn", False)):
        judge = make()
        judge.reset(seed=EVALUATION_SEED)
        means[kind] = float(evaluate_policy(model, judge, EPISODES, deterministic=deterministic)[0])
    print(json.dumps(means))


def measure(name: str, algorithm: str, seed: int) -> dict[str, Any]:
    """Trains and evaluates once; returns the row of results."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    task, result = TASKS[name], {"task": name, "algorithm": algorithm, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        try:
            ours = algorithm in ROLLCAST
            means = train_ours(task, algorithm, seed, Path(folder)) if ours else train_theirs(task, algorithm, seed)
        except subprocess.CalledProcessError as error:
            return result | {"failure": ((error.stderr or "").strip().splitlines() or ["?"])[-1]}
        except subprocess.TimeoutExpired:
            return result | {"failure": f"longer than {MOST_S:g} s"}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result | {"means": means, "seconds": time.monotonic() - began, "cpu_s": cpu}


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the results of the file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tell(results: Sequence[Mapping[str, Any]], tasks: Sequence[str], algorithms: Sequence[str]) -> None:
    """Prints the table: the median over the seeds of the better mean return, and the failures."""
    rows = []
    for name in tasks:
        row = [f"`{name}`"]
        for algorithm in algorithms:
            cell = [one for one in results if (one["task"], one["algorithm"]) == (name, algorithm)]
            returns = [max(one["means"].values()) for one in cell if "means" in one]
            failures = len(cell) - len(returns)
            below = sum(value < TASKS[name].random for value in returns)
            solved = TASKS[name].solved
            text = str(Figure(returns, ".4g")) if returns else "-"
            if returns and solved is not None:
                text += f" ({sum(value >= solved for value in returns)}/{len(cell)})"
            text += f", {failures} failed" if failures else ""
            text += f", {below} below random" if below else ""
            row.append(text)
        rows.append(row)
    print_table(("task", *algorithms), rows)


def marks(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line for each mark: whether the results meet it, and where they do not."""

    def middle(name: str, algorithm: str) -> float | None:
        cell = [one for one in results if (one["task"], one["algorithm"]) == (name, algorithm)]
        # A run that failed has the worst return.
        returns = [max(one["means"].values()) if "means" in one else -math.inf for one in cell]
        return median(returns) if returns else None

    def of_level(ours: str, peers: Sequence[str], name_of_peers: str) -> str:
        n_level, short = 0, []
        for name in TASKS:
            mine = middle(name, ours)
            theirs = [value for peer in peers if (value := middle(name, peer)) is not None]
            if mine is None or not theirs:
                continue
            best = max(theirs)
            if mine >= best or math.isclose(mine, best, rel_tol=LEVEL_SHARE, abs_tol=LEVEL_AMOUNT):
                n_level += 1
            else:
                short.append(f"{name} ({mine:.4g}, theirs {best:.4g})")
        line = f"{ours} is level with {name_of_peers} on {n_level} of {n_level + len(short)} tasks"
        return f"{line}; not on {', '.join(short)}" if short else line

    def runs(ones: Sequence[Mapping[str, Any]]) -> str:
        return ", ".join(f"{one['task']} by {one['algorithm']}, seed {one['seed']}" for one in ones) or "none"

    ours = [one for one in results if one["algorithm"] in ROLLCAST]
    below = [one for one in ours if "means" in one and max(one["means"].values()) < TASKS[one["task"]].random]
    return [
        of_level(DEFAULT_ALGORITHM, ["sb3-ppo"], "SB3's PPO"),
        of_level(ADVISED, PEERS, "the best of SB3's"),
        f"runs of ours below random actions: {runs(below)}",
        f"runs of ours that failed: {runs([one for one in ours if 'failure' in one])}",
    ]


def main() -> None:
    """Makes the runs that are missing, and prints the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="some tasks only: " + ", ".join(TASKS))
    parser.add_argument("--algorithms", default=",".join((*ROLLCAST, *PEERS)), help="some algorithms only, with commas")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=100, help="the first of them")
    parser.add_argument("--results", type=Path, default=Path("build/first_contact.jsonl"), help="the file of results")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        play_theirs(json.loads(options.play))
        return
    tasks, algorithms = options.tasks or list(TASKS), options.algorithms.split(",")
    if unknown := {*tasks} - {*TASKS} | {*algorithms} - {*ROLLCAST, *PEERS}:
        parser.error(f"there is no task or algorithm {', '.join(sorted(unknown))}; see --help")
    results = read(options.results)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in tasks:
            for algorithm in algorithms:
                wanted = (name, algorithm, seed)
                is_there = any((one["task"], one["algorithm"], one["seed"]) == wanted for one in results)
                if is_there or not fits(TASKS[name], algorithm):
                    continue
                results.append(measure(name, algorithm, seed))
                with options.results.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
                print(json.dumps(results[-1]), flush=True)
    tell(results, tasks, algorithms)
    print()
    print("\n".join(marks(results)))


if __name__ == "__main__":
    main()
