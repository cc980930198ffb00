"""Measures frames of Atari on their way to a learner: single frames, which the learner stacks, beside stacks of four.

    python -m benchmarks.atari [--seconds 1.5] [--rounds 7]

As in `benchmarks.ingest`, two processes send the same rollout for ever over the connection that actors use, 64 steps of
8 games of random pixels; no game is played. One learner takes single frames `[84, 84]` for a policy with a frame stack
of four, another one takes stacks `[4, 84, 84]`, as an environment with FrameStackObservation gives them. They run in
turns. A frame counts once it is in the slot of a batch; in the second row, once it is in the tensor that a
network takes, `[T * B, 4, 84, 84]`, for which single frames are stacked and stacks are put one after the other.
"""

import argparse
import multiprocessing
import time
from ctypes import c_bool
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from benchmarks.ingest import N_ACTORS, SETTLE_S, Learner, Load, rollout_bytes, synthetic_actor, synthetic_rollout
from benchmarks.table import Figure, print_table, ratio
from rollcast.learner.algorithms.trajectories import observations_to_value
from rollcast.learner.batch import Batch
from rollcast.services.spaces.spaces import FLAT_SUBSTEP

N_STACKED = 4
FRAME = Box(0, 255, (84, 84), np.uint8)
STACK = Box(0, 255, (N_STACKED, 84, 84), np.uint8)
SINGLE_FRAMES = Load("single frames", FRAME, n_steps=64, n_envs=8, target="", frame_stack=N_STACKED)
STACKS = Load("stacks", STACK, n_steps=64, n_envs=8, target="")


def put_together(batch: Batch) -> None:
    """Computes what both networks take."""
    rows = observations_to_value(batch, batch.substeps[FLAT_SUBSTEP])[""]
    assert rows.shape[1:] == STACK.shape


class Side:
    """A learner and the processes that send it one kind of rollouts."""

    def __init__(self, load: Load) -> None:
        self._load = load
        context = multiprocessing.get_context("spawn")
        self._sending: Any = context.Value(c_bool, False, lock=False)
        self._learner = Learner(load)
        self._processes = [
            context.Process(
                target=synthetic_actor, args=(index, load, self._learner.address, self._sending), daemon=True
            )
            for index in range(N_ACTORS)
        ]
        for process in self._processes:
            process.start()
        self._learner.wait_for_actors()

    def frames_per_second(self, seconds: float, *, stacked: bool) -> float:
        """Measures for some seconds."""
        use = put_together if stacked else lambda batch: None
        self._sending.value = True
        self._learner.consume(SETTLE_S, use)
        started = time.perf_counter()
        n_trajectories = self._learner.consume(seconds, use)
        elapsed = time.perf_counter() - started
        self._sending.value = False
        self._learner.consume(SETTLE_S, use)
        return n_trajectories * self._load.n_steps / elapsed

    def close(self) -> None:
        """Ends the processes and the learner."""
        for process in self._processes:  # clients first, or they log errors
            process.kill()
            process.join()
        self._learner.close()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; medians are printed")
    options = parser.parse_args()
    n_bytes = [rollout_bytes(synthetic_rollout(load, "synthetic-0")) for load in (SINGLE_FRAMES, STACKS)]
    sides: list[Side] = []
    rows = []
    try:
        sides += [Side(SINGLE_FRAMES), Side(STACKS)]
        for name, stacked, target in (("in the batch's slot", False, "3"), ("in the network's tensor", True, "")):
            for side in sides:
                side.frames_per_second(options.seconds, stacked=stacked)
            rounds = [
                [side.frames_per_second(options.seconds, stacked=stacked) for side in sides]
                for _ in range(options.rounds)
            ]
            single, stacks = zip(*rounds, strict=True)
            rows.append((name, Figure(single), Figure(stacks), ratio(single, stacks), target))
    finally:
        for side in sides:
            side.close()
    print(
        f"\n{N_ACTORS} synthetic actors; rollouts of 64 steps and 8 games: {n_bytes[0]:,} bytes; stacks {n_bytes[1]:,}"
    )
    print_table(("frames/s", "single frames", "stacks", "ratio (rounds)", "target"), rows)


if __name__ == "__main__":
    main()
