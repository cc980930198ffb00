"""The replay buffer beside a bare gather in numpy and beside its peers, in the same run.

    python -m benchmarks.replay [--rounds 15] [--calls 60] [--only images] [--peers]

Times are of the processor, not of the clock: everything here runs in one thread, and whoever else works on the machine
is not to count. Contestants take turns, round by round; printed is each one's best round, and their ratio.
"""

import argparse
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from benchmarks import replay_peers
from benchmarks.replay_peers import BATCH_SIZE
from benchmarks.table import print_table
from learner.replay.buffer import ReplayBuffer
from learner.replay.replay_settings import ReplaySettings
from learner.replay.sum_tree import SumTree
from services.rollouts import Rollout, SubstepColumns
from services.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces

N_STEPS = 100
N_PRIORITIES = 512
# Name, observation space, entries.
LOADS = (
    ("4 floats, 1M", Box(-10, 10, (4,), np.float32), 1_000_000),
    ("376 floats, 1M", Box(-10, 10, (376,), np.float32), 1_000_000),
    ("images 84x84x4, 100k", Box(0, 255, (84, 84, 4), np.uint8), 100_000),
)


def best_times(contestants: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, float]:
    """Seconds a call in the best round of each."""
    best = dict.fromkeys(contestants, np.inf)
    for _ in range(rounds):
        for name, call in contestants.items():
            call()
            started = time.process_time()
            for _ in range(calls):
                call()
            best[name] = min(best[name], (time.process_time() - started) / calls)
    return best


def spaces_of(space: Box) -> EnvironmentSpaces:
    """An environment with these observations and two actions."""
    return {FLAT_SUBSTEP: SubstepSpaces(observation=space, action=Discrete(2))}


def rollout_of(space: Box, n_steps: int, n_envs: int = 1) -> Rollout:
    """A rollout without end."""
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
    """A buffer that has begun to overwrite."""
    buffer = ReplayBuffer(
        ReplaySettings(capacity=capacity, **settings),
        spaces_of(space),
        n_rollout_steps=n_rollout_steps,
        batch_size=BATCH_SIZE,
    )
    rollout = rollout_of(space, n_rollout_steps)
    for _ in range(capacity // n_rollout_steps + 2):
        buffer.insert(rollout)
    return buffer


def sampling(options: argparse.Namespace) -> None:
    """Prints what drawing 256 transitions costs."""
    rows = []
    for name, space, capacity in LOADS:
        if options.only and options.only not in name:
            continue
        buffer = full_buffer(space, capacity)
        ours: dict[str, Callable[[], object]] = {"ours": lambda buffer=buffer: buffer.sample(BATCH_SIZE)}
        peers = [
            ("bare gather", lambda s=space, n=capacity: replay_peers.bare_gather(s, n, fancy=True)),
            ("bare np.take", lambda s=space, n=capacity: replay_peers.bare_gather(s, n, fancy=False)),
        ]
        if options.peers:
            peers += [
                ("SB3", lambda s=space, n=capacity: replay_peers.stable_baselines(s, n)),
                ("cpprb", lambda s=space, n=capacity: _sampler(replay_peers.cpprb(s, n))),
            ]
        for peer, make in peers:  # one at a time, because of the memory
            call = make()
            if call is None:
                rows.append((name, peer, "not installed", "", "", ""))
                continue
            times = best_times({**ours, peer: call}, options.rounds, options.calls)
            mine, theirs = times["ours"], times[peer]
            rows.append(
                (
                    name,
                    peer,
                    f"{BATCH_SIZE / theirs / 1e6:.2f} M/s",
                    f"{BATCH_SIZE / mine / 1e6:.2f} M/s",
                    f"{mine / theirs:.2f}",
                    "<= 1.3" if peer == "bare gather" else "" if peer == "bare np.take" else "< 1",
                )
            )
            del call
            gc.collect()
        del buffer, ours
        gc.collect()
    print(f"\nSampling {BATCH_SIZE} transitions, uniformly")
    print_table(("entries", "beside", "its items", "our items", "our time / its time", "target"), rows)


def priorities(options: argparse.Namespace) -> None:
    """Prints what the sum tree costs, and the buffer around it."""
    rows, rng = [], np.random.default_rng(0)
    for capacity in (10_000, 100_000, 1_000_000, 10_000_000):
        tree = SumTree(capacity)
        tree.set(np.arange(capacity), rng.random(capacity))
        indices, values = rng.integers(0, capacity, N_PRIORITIES), rng.random(N_PRIORITIES)
        contestants: dict[str, Callable[[], object]] = {
            "sample": lambda tree=tree: tree.sample(rng, N_PRIORITIES),
            "update": lambda tree=tree, i=indices, v=values: tree.set(i, v),
        }
        if capacity <= 1_000_000:
            buffer = full_buffer(LOADS[0][1], capacity, sampler="prioritized")
            keys = buffer.sample(N_PRIORITIES).keys.copy()
            contestants["buffer sample"] = lambda b=buffer: b.sample(N_PRIORITIES)
            contestants["buffer update"] = lambda b=buffer, k=keys, v=values: b.update_priorities(k, v)
        times = best_times(contestants, options.rounds, options.calls)
        names = ("sample", "update", "buffer sample", "buffer update")
        rows.append((f"{capacity:,}", *(f"{times[name] * 1e3:.3f} ms" if name in times else "" for name in names)))
    print(f"\nPriorities, {N_PRIORITIES} at a time; target at 1M: 0.3 ms each")
    print_table(("entries", "tree: sample", "tree: update", "buffer: sample", "buffer: update"), rows)


def inserting(options: argparse.Namespace) -> None:
    """Prints what inserting blocks of 100 transitions costs, and what an entry takes."""
    rows = []
    space, capacity = LOADS[0][1], 1_000_000
    row_bytes = 4 * 4 + 8 + 4 + 1
    for sampler, n_steps, n_envs in (
        ("uniform", 100, 1),
        ("uniform", 20, 5),
        ("uniform", 16, 6),
        ("prioritized", 100, 1),
    ):
        buffer = full_buffer(space, capacity, n_rollout_steps=n_steps, sampler=sampler)
        rollout = rollout_of(space, n_steps, n_envs)
        times = best_times({"ours": lambda b=buffer, r=rollout: b.insert(r)}, options.rounds, options.calls)
        per_entry = buffer.info().n_bytes / capacity
        rows.append(
            (
                f"{n_steps} steps x {n_envs}, {sampler}",
                f"{n_steps * n_envs / times['ours'] / 1e6:.2f} M/s",
                "2 M/s",
                f"{per_entry:.1f}",
                f"{per_entry / row_bytes:.3f}",
            )
        )
    print(f"\nInserting transitions of 4 floats into {capacity:,}; their arrays take {row_bytes} bytes each")
    print_table(("rollout", "transitions", "target", "bytes an entry", "times the arrays' (target 1.1)"), rows)


def _sampler(buffer: Any) -> Callable[[], object] | None:
    return None if buffer is None else lambda: buffer.sample(BATCH_SIZE)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds, of which the best is printed")
    parser.add_argument("--calls", type=int, default=60, help="calls a round")
    parser.add_argument("--only", help="measure sampling only of loads whose name contains this")
    parser.add_argument("--peers", action="store_true", help="beside SB3 and cpprb, too, where they are installed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sampling(options)
    priorities(options)
    inserting(options)


if __name__ == "__main__":
    main()
