"""Measures the replay buffer beside a bare gather in numpy and beside other libraries, in the same run.

    python -m benchmarks.replay [--rounds 15] [--calls 60] [--only images] [--peers] [--plot FILE.svg]

Times are processor time, so that other load on the machine does not count; everything runs in one thread. Contestants
take turns in every round. The table has the median of each, and the median of the ratios. `make peers` installs the
packages for --peers and --plot.
"""

import argparse
import gc
import importlib.util
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from benchmarks import replay_peers
from benchmarks.replay_peers import BATCH_SIZE, Call
from benchmarks.replay_plot import draw_plot
from benchmarks.table import Figure, print_table
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.sampling.trees import SumTree
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces

N_STEPS = 100
N_PRIORITIES = 512
# Every second one is in the table if nothing is plotted.
PLOT_CAPACITIES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
# Name, observation space, entries.
LOADS = (
    ("4 floats, 1M", Box(-10, 10, (4,), np.float32), 1_000_000),
    ("376 floats, 1M", Box(-10, 10, (376,), np.float32), 1_000_000),
    ("images 84x84x4, 100k", Box(0, 255, (84, 84, 4), np.uint8), 100_000),
)


def round_times(contestants: Mapping[str, Call], rounds: int, calls: int) -> dict[str, np.ndarray]:
    """Measures the seconds of a call of each contestant, `[rounds]`."""
    times = {name: np.zeros(rounds) for name in contestants}
    for turn in range(rounds):
        for name, call in contestants.items():
            call()
            started = time.process_time()
            for _ in range(calls):
                call()
            times[name][turn] = (time.process_time() - started) / calls
    return times


def spaces_of(space: Box) -> EnvironmentSpaces:
    """Returns the spaces of an environment with these observations and two actions."""
    return {FLAT_SUBSTEP: SubstepSpaces(observation=space, action=Discrete(2))}


def rollout_of(space: Box, n_steps: int, n_envs: int = 1) -> Rollout:
    """Makes a rollout in which no episode ends."""
    shape = (n_steps, n_envs)
    return Rollout(
        actor_id="benchmark",
        incarnation=1,
        sequence=1,
        policy_version=1,
        substeps={
            FLAT_SUBSTEP: SubstepColumns(
                observation={"": np.full((*shape, *space.shape), 1, space.dtype)},
                action=np.ones(shape, np.int64),
                log_prob=np.zeros(shape, np.float32),
                last_observation={"": np.full((n_envs, *space.shape), 1, space.dtype)},
                final_observation={"": np.zeros((0, *space.shape), space.dtype)},
            )
        },
        reward=np.ones(shape, np.float32),
        terminated=np.zeros(shape, np.bool_),
        truncated=np.zeros(shape, np.bool_),
        valid=None,
        final_index=np.zeros((0, 2), np.int32),
        episodes=(),
        env_seeds=(0,) * n_envs,
    )


def full_buffer(space: Box, capacity: int, n_rollout_steps: int = N_STEPS, **settings: Any) -> ReplayBuffer:
    """Makes a buffer that is overwritten up to its middle, the usual state: the newest rows lie before the oldest."""
    buffer = ReplayBuffer(
        ReplaySettings(capacity=capacity, **settings),
        spaces_of(space),
        n_rollout_steps=n_rollout_steps,
        batch_size=BATCH_SIZE,
    )
    rollout = rollout_of(space, n_rollout_steps)
    for _ in range(3 * capacity // (2 * n_rollout_steps)):
        buffer.insert(rollout)
    return buffer


def sampling(options: argparse.Namespace) -> None:
    """Prints the cost of drawing 256 transitions."""
    rows = []
    for name, space, capacity in LOADS:
        if options.only and options.only not in name:
            continue
        buffer = full_buffer(space, capacity)
        contestants: dict[str, Call] = {"ours": lambda buffer=buffer: buffer.sample(BATCH_SIZE)}
        contestants |= replay_peers.bare_gathers(space, capacity)
        if options.peers:
            contestants |= replay_peers.sample_calls(space, capacity)
        times = round_times(contestants, options.rounds, options.calls)
        mine = times.pop("ours")
        for peer, theirs in times.items():
            speeds = [Figure(BATCH_SIZE / seconds, ".2f", "M/s", scale=1e-6) for seconds in (theirs, mine)]
            target = "<= 1.3" if peer.startswith("bare") else "< 1"
            rows.append((f"{name}, beside {peer}", *speeds, Figure(mine / theirs, ".2f"), target))
        del buffer, contestants
        gc.collect()
    print(f"\nSampling {BATCH_SIZE} transitions, uniformly")
    print_table(("entries", "its items", "our items", "our time / its time", "target"), rows)


def priority_times(capacity: int, options: argparse.Namespace) -> dict[str, Figure]:
    """Returns the milliseconds of a call: the tree, the buffer, and a buffer that draws after each update."""
    rng = np.random.default_rng(0)
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), rng.random(capacity))
    indices, values = rng.integers(0, capacity, N_PRIORITIES), rng.random(N_PRIORITIES)
    buffer = full_buffer(LOADS[0][1], capacity, sampler="prioritized")
    keys = buffer.sample(N_PRIORITIES).keys.copy()

    def update_tree() -> None:
        tree.set(indices, values)
        _ = tree.total  # computes the levels above the leaves, which `set` leaves to the next read

    def update_and_sample() -> None:
        buffer.update_priorities(keys, values)
        buffer.sample(N_PRIORITIES)

    contestants: dict[str, Call] = {
        "tree: sample": lambda: tree.sample(rng, N_PRIORITIES),
        "tree: update": update_tree,
        "buffer: sample": lambda: buffer.sample(N_PRIORITIES),
        "buffer: update, sample": update_and_sample,
    }
    if options.peers:
        contestants |= replay_peers.priority_calls(LOADS[0][1], capacity, N_PRIORITIES)
    times = round_times(contestants, options.rounds, options.calls)
    return {name: Figure(seconds, ".3f", scale=1e3) for name, seconds in times.items()}


def priorities(options: argparse.Namespace) -> None:
    """Prints and plots the cost of the sum tree, and of the buffer around it."""
    capacities = PLOT_CAPACITIES if options.plot else PLOT_CAPACITIES[::2]
    times = {capacity: priority_times(capacity, options) for capacity in capacities}
    names = list(times[capacities[0]])
    rows = [(f"{capacity:,}", *(times[capacity][name] for name in names)) for capacity in capacities]
    print(f"\nPriorities, {N_PRIORITIES} at a time, in ms; target at 1M: 0.3 to sample, 0.3 to update")
    print_table(("entries", *names), rows)
    if options.plot:
        series = {name: [times[capacity][name].value for capacity in capacities] for name in names}
        draw_plot(options.plot, capacities, series, title=f"Prioritised replay, {N_PRIORITIES} at a time")


def inserting(options: argparse.Namespace) -> None:
    """Prints the cost of inserting blocks of transitions, and the bytes of an entry."""
    space, capacity = LOADS[0][1], 1_000_000
    row_bytes = 4 * 4 + 8 + 4 + 1
    contestants: dict[str, Call] = {}
    n_transitions: dict[str, int] = {}
    entry_bytes: dict[str, float] = {}
    for sampler, n_steps, n_envs in (
        ("uniform", 100, 1),
        ("uniform", 20, 5),
        ("uniform", 16, 6),
        ("prioritized", 100, 1),
    ):
        buffer = full_buffer(space, capacity, n_rollout_steps=n_steps, sampler=sampler)
        rollout = rollout_of(space, n_steps, n_envs)
        name = f"{n_steps} steps x {n_envs}, {sampler}"
        contestants[name] = lambda buffer=buffer, rollout=rollout: buffer.insert(rollout)
        n_transitions[name] = n_steps * n_envs
        entry_bytes[name] = buffer.info().n_bytes / capacity
    rows = []
    if options.peers:
        contestants |= replay_peers.insert_calls(space, capacity)
    for name, seconds in round_times(contestants, options.rounds, options.calls).items():
        speed = Figure(n_transitions.get(name, replay_peers.BLOCK) / seconds, ".2f", "M/s", scale=1e-6)
        of_entry = entry_bytes.get(name)
        size = ("", "") if of_entry is None else (f"{of_entry:.1f}", f"{of_entry / row_bytes:.3f}")
        rows.append((name, speed, "2 M/s" if name in n_transitions else "", *size))
    print(f"\nInserting transitions of 4 floats into {capacity:,}; their arrays take {row_bytes} bytes each")
    print_table(("rollout", "transitions", "target", "bytes an entry", "times the arrays' (target 1.1)"), rows)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds; the median is printed")
    parser.add_argument("--calls", type=int, default=60, help="calls in a round")
    parser.add_argument("--only", help="measure sampling only of loads whose name contains this")
    parser.add_argument("--peers", action="store_true", help="also measure SB3 and cpprb")
    parser.add_argument("--plot", metavar="FILE", help="draw the cost of priorities over the size into this svg or png")
    options = parser.parse_args()
    wanted = ["cpprb", "stable_baselines3"] * options.peers + ["matplotlib"] * (options.plot is not None)
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"--peers and --plot need {', '.join(missing)}; install them with `make peers`")
    torch.set_num_threads(1)
    sampling(options)
    priorities(options)
    inserting(options)


if __name__ == "__main__":
    main()
