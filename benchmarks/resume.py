"""Measures how soon a killed learner trains again: `rollcast learner --resume` with a replay buffer of 1 GB.

    python -m benchmarks.resume [--rounds 3] [--gigabytes 1]

It writes a checkpoint of a DQN run on images once. Then it starts the command several times as a user would, with the
checkpoint's files in the page cache and without. It reports the seconds from the start of the process to the end of
its first update, imports included, by stage. No actor is needed: the replay buffer has experience to learn from.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from benchmarks.table import Figure, print_table

T = 64
N_ENVS = 4
IMAGE = Box(0, 255, (84, 84, 4), np.uint8)
STAGES = ("imports, networks, buffer", "digests", "files", "load", "serve", "first update")


class Images(gymnasium.Env[Any, Any]):
    """An environment with the spaces of Atari; it is never stepped."""

    observation_space = IMAGE
    action_space = Discrete(6)


def options(run_dir: Path, gigabytes: float) -> list[str]:
    """Returns the settings of the run."""
    capacity = max(int(gigabytes * 1e9 / 28_300), N_ENVS * T)
    text = "--algorithm dqn --env-id benchmarks.resume:Images --address 127.0.0.1:0 --device cpu --torch-threads 1"
    text += f" --n-rollout-steps {T} --batch-size 32 --replay.capacity {capacity} --replay.min-size 64"
    return [*text.split(), "--run-dir", str(run_dir)]


def write_run(run_dir: Path, gigabytes: float) -> None:
    """Makes the run, fills its buffer, and writes a checkpoint."""
    from benchmarks.ingest import Load, synthetic_rollout
    from rollcast.actor.environments.make import EnvironmentFactory
    from rollcast.actor.vector.make import probe_spaces
    from rollcast.learner.actors.remote import RemoteDistributedActors
    from rollcast.learner.settings.learner import ServingSettings
    from rollcast.learner.training.run_parts import actors_batch_size
    from rollcast.learner.training.training_run import training_run

    settings = ServingSettings.from_command_line("rollcast learner", options(run_dir, gigabytes))

    def make_actors(policy: Any, serving: Any) -> Any:
        return RemoteDistributedActors(
            policy,
            T,
            actors_batch_size(settings, policy.spaces, settings.max_actors),
            settings.queue_out_of_sync_factor,
            envs_per_actor=N_ENVS,
            serving=serving,
        )

    with training_run(
        settings, probe_spaces(EnvironmentFactory(settings.env_id)), make_actors, n_local_actors=0
    ) as run:
        trainer: Any = run.trainer  # private, but this benchmark needs its checkpoints
        (buffer,) = trainer._experience.buffers.values()
        rollout = synthetic_rollout(Load("images", IMAGE, n_steps=T, n_envs=N_ENVS, target=""), "actor")
        buffer.load([rollout] * (buffer.info().capacity // rollout.reward.size))
        with trainer._experience as experience:
            # The update gives the optimiser a state.
            trainer._algorithm.update(experience.next("cpu").batch, progress=0.0)
            trainer._keeper.save_last_checkpoint(has_ended=False, timeout_s=300.0)


def forget_files(run_dir: Path) -> int:
    """Drops a run's files from the page cache; returns their bytes."""
    n_bytes = 0
    for path in (run_dir / "checkpoints").rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
            n_bytes += path.stat().st_size
    return n_bytes


def resume_once(began: float, run_dir: Path) -> None:
    """Process: resumes the run as the command does, up to its first update, and prints the time of each stage."""
    from rollcast.learner.algorithms.dqn import Dqn
    from rollcast.learner.experience.experience import ExperienceSource
    from rollcast.learner.training import run_folder
    from rollcast.learner.training.trainer import Trainer
    from rollcast.tools.cli import main

    marks: list[float] = []

    def mark(owner: Any, name: str, *, before: bool = False) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def marked(*arguments: Any, **named: Any) -> Any:
            if before:
                marks.append(time.monotonic())
            result = function(*arguments, **named)
            marks.append(time.monotonic())
            return result

        setattr(owner, name, marked)

    def update(*arguments: Any, **named: Any) -> None:
        learn(*arguments, **named)
        marks.append(time.monotonic())
        seconds = [later - before for before, later in zip([began, *marks], marks, strict=False)]
        print(json.dumps([*seconds, time.process_time()]), flush=True)
        os._exit(0)

    mark(run_folder, "newest_checkpoint", before=True)
    mark(Trainer, "resume", before=True)
    mark(ExperienceSource, "__enter__")
    learn = Dqn.update
    Dqn.update = update  # type: ignore[method-assign]  # on purpose: reports the time
    sys.exit(main(["learner", "--resume", str(run_dir)]))


def measure(run_dir: Path, *, is_cold: bool) -> list[float]:
    """Returns the seconds of each stage, and the processor time of all."""
    if is_cold:
        forget_files(run_dir)
    command = "import sys; from pathlib import Path; from benchmarks.resume import resume_once; "
    command += "resume_once(float(sys.argv[1]), Path(sys.argv[2]))"
    ended = subprocess.run(
        [sys.executable, "-c", command, str(time.monotonic()), str(run_dir)], stdout=subprocess.PIPE, check=True
    )
    seconds: list[float] = json.loads(ended.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are printed")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the replay buffer")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollcast-resume-", dir=".") as folder:
        run_dir = Path(folder) / "run"
        write_run(run_dir, parsed.gigabytes)
        n_bytes = forget_files(run_dir)
        found = {
            name: [measure(run_dir, is_cold=is_cold) for _ in range(parsed.rounds)]
            for name, is_cold in (("dropped from the cache", True), ("in the cache", False))
        }
    print(f"\n{n_bytes / 1e9:.2f} GB in the checkpoint; {parsed.rounds} rounds; seconds, medians")
    rows = []
    for name, rounds in found.items():
        stages = [Figure(seconds, ".2f") for seconds in zip(*rounds, strict=True)]
        total = Figure([sum(seconds[:-1]) for seconds in rounds], ".2f", has_range=True)
        rows.append((name, *stages, total, "10"))
    print_table(("files", *STAGES, "processor", "all", "target"), rows)


if __name__ == "__main__":
    main()
