"""Ingest: rollouts of two synthetic actors until they lie in the batch slot, beside a bare gRPC byte stream.

    python -m benchmarks.ingest [--seconds 1.5] [--rounds 7] [--only "64 KiB"]

Two processes step no environment and send the same rollout for ever, over the connection that actors use, to a served
learner in this process: intake, queue, and a batcher on the consumer's thread. A byte counts when it is in the slot.
Beside it, from the same two processes in turns of a second, messages of the same size over a bidirectional stream of
bytes with the same window, which the server counts and acknowledges. Pixel rollouts travel in frames of 1 MiB, so that
is the size of their bare messages.
"""

import argparse
import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Callable
from ctypes import c_int
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from benchmarks.bare_streams import BareUplink, ByteCounter, ByteFanOut, serve_bytes
from benchmarks.table import print_table
from services.joining import JoinOffer
from services.policies import PolicySpec
from services.rollout_codec import MAX_FRAME_BYTES, rollout_to_messages
from services.rollouts import EpisodeStatistics, Rollout, SubstepColumns
from services.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces

N_ACTORS = 2
# How many rollouts make a batch; the queue holds one batch.
ROLLOUTS_PER_BATCH = 4
IDLE, BARE, ROLLOUTS, QUIT = range(4)
_SETTLE_S = 0.3


@dataclasses.dataclass(frozen=True)
class Load:
    """What is sent."""

    name: str
    pixels: bool
    n_steps: int
    n_envs: int
    target: str

    @property
    def spaces(self) -> EnvironmentSpaces:
        """CartPole's, or Atari's."""
        if self.pixels:
            substep = SubstepSpaces(observation=Box(0, 255, (84, 84, 4), np.uint8), action=Discrete(6))
        else:
            substep = SubstepSpaces(observation=Box(-10, 10, (4,), np.float32), action=Discrete(2))
        return {FLAT_SUBSTEP: substep}


LOADS = (
    Load("64 KiB", pixels=False, n_steps=32, n_envs=58, target="60%"),
    Load("256 KiB", pixels=False, n_steps=32, n_envs=233, target="60%"),
    Load("1 MiB", pixels=False, n_steps=128, n_envs=236, target="60%"),
    Load("pixels, B=4", pixels=True, n_steps=20, n_envs=4, target="250 MB/s"),
    Load("pixels, B=16", pixels=True, n_steps=20, n_envs=16, target="250 MB/s"),
)


def synthetic_rollout(load: Load, actor_id: str) -> Rollout:
    """A rollout such as an actor sends: every column filled, a few episodes ended."""
    rng = np.random.default_rng(0)
    shape, (substep,) = (load.n_steps, load.n_envs), load.spaces.values()
    space = substep.observation
    assert isinstance(space, Box)
    final_index = np.stack([rng.integers(0, load.n_steps, 4), np.arange(4)], axis=1).astype(np.int32)

    def observation(*leading: int) -> dict[str, np.ndarray]:
        values = rng.integers(0, 255, (*leading, *space.shape)) if load.pixels else rng.normal(size=(*leading, 4))
        return {"": values.astype(space.dtype)}

    terminated = np.zeros(shape, np.bool_)
    terminated[tuple(final_index.T)] = True
    return Rollout(
        actor_id=actor_id,
        incarnation=1,
        sequence=1,
        policy_version=1,
        substeps={
            FLAT_SUBSTEP: SubstepColumns(
                observation=observation(*shape),
                action=rng.integers(0, 2, shape),
                log_prob=-rng.random(shape, np.float32),
                last_observation=observation(load.n_envs),
                final_observation=observation(len(final_index)),
            )
        },
        reward=np.ones(shape, np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, np.bool_),
        valid=None,
        final_index=final_index,
        episodes=tuple(EpisodeStatistics(env_index=b, episode_return=100.0, n_steps=100) for b in range(4)),
        env_seeds=tuple(range(load.n_envs)),
    )


def rollout_bytes(rollout: Rollout) -> int:
    """What it weighs on the wire."""
    return sum(message.ByteSize() for message in rollout_to_messages(rollout))


def synthetic_actor(index: int, load: Load, bare_address: str, address: str, mode: Any) -> None:
    """Process: sends what `mode` says, as fast as it may."""
    from actor.connection import LearnerConnection

    actor_id = f"synthetic-{index}"
    rollout = synthetic_rollout(load, actor_id)
    bare = BareUplink(bare_address, bytes(min(rollout_bytes(rollout), MAX_FRAME_BYTES)))
    offer = JoinOffer(
        actor_id=actor_id,
        process_nonce=index + 1,
        spaces=load.spaces,
        n_envs=load.n_envs,
        network=PolicySpec().network,
        software_version="benchmark",
    )
    sequence = 1
    with LearnerConnection(address, offer) as connection:
        connection.join()
        while mode.value != QUIT:
            if mode.value == BARE:
                bare.send()
            elif mode.value == ROLLOUTS and connection.wait_for_credit(sequence, 0.1):
                connection.send(dataclasses.replace(rollout, sequence=sequence))
                sequence += 1
            else:
                time.sleep(0.001)
    bare.close()


class Learner:
    """A served learner that trains on nothing."""

    def __init__(self, load: Load) -> None:
        import torch

        from learner.actor_registry import ActorRegistry
        from learner.batcher import Batcher
        from learner.publisher import PolicyPublisher
        from learner.rollout_intake import RolloutIntake
        from learner.rollout_queue import RolloutQueue
        from services.server import make_server

        batch_size = ROLLOUTS_PER_BATCH * load.n_envs
        self._queue = RolloutQueue(batch_size)
        self._batcher = Batcher(
            load.spaces, n_rollout_steps=load.n_steps, batch_size=batch_size, device=torch.device("cpu")
        )
        publisher = PolicyPublisher(load.spaces, PolicySpec(), seed=0)
        publisher.publish({"weight": np.zeros(1, np.float32)})
        intake = RolloutIntake(
            ActorRegistry(max_actors=N_ACTORS, seed=0),
            self._queue,
            spaces=load.spaces,
            policy=PolicySpec(),
            n_rollout_steps=load.n_steps,
        )
        # nobody asks for the status here
        control: Any = None
        self._server = make_server("127.0.0.1:0", sink=intake, source=publisher, control=control)
        self._server.start()
        self.address = self._server.address
        self._close = (intake.end_training, publisher.end, self._queue.close, self._server.stop)

    def consume(self, duration_s: float) -> int:
        """Puts what comes into batch slots for so long; returns how many rollouts that were."""
        n_trajectories = 0
        end = time.perf_counter() + duration_s
        while time.perf_counter() < end:
            piece = self._queue.get(self._batcher.n_missing, 0.1)
            if piece is not None:
                self._batcher.add(piece)
                n_trajectories += piece.n_trajectories
            if not self._batcher.n_missing:
                self._batcher.finish()
        return n_trajectories

    def close(self) -> None:
        """Stops serving."""
        for close in self._close:
            close()


def measure(load: Load, rounds: int, seconds: float) -> list[tuple[float, float]]:
    """Bytes a second of the bare stream and of rollouts, round by round."""
    counter = ByteCounter()
    server, bare_address = serve_bytes(counter, ByteFanOut(), n_threads=2 * N_ACTORS)
    learner = Learner(load)
    n_bytes = rollout_bytes(synthetic_rollout(load, "synthetic-0"))
    context = multiprocessing.get_context("spawn")
    mode = context.Value(c_int, IDLE, lock=False)
    actors = [
        context.Process(target=synthetic_actor, args=(index, load, bare_address, learner.address, mode), daemon=True)
        for index in range(N_ACTORS)
    ]
    for actor in actors:
        actor.start()

    def rate(what: int, receive: Callable[[float], int]) -> float:
        mode.value = what
        receive(_SETTLE_S)
        started = time.perf_counter()
        received = receive(seconds)
        elapsed = time.perf_counter() - started
        mode.value = IDLE
        learner.consume(_SETTLE_S)
        return received / elapsed

    def count(duration_s: float) -> int:
        before = counter.n_bytes
        time.sleep(duration_s)
        return counter.n_bytes - before

    def consume(duration_s: float) -> int:
        return learner.consume(duration_s) * n_bytes // load.n_envs

    try:
        mode.value = ROLLOUTS
        while not consume(1.0):
            assert all(actor.is_alive() for actor in actors), "a synthetic actor ended"
        return [(rate(BARE, count), rate(ROLLOUTS, consume)) for _ in range(rounds)]
    finally:
        mode.value = QUIT
        learner.close()
        server.stop(None)
        for actor in actors:
            actor.join(5)
            actor.kill()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds a measurement")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which medians are printed")
    parser.add_argument("--only", help="measure only loads whose name contains this")
    options = parser.parse_args()
    rows = []
    for load in LOADS:
        if options.only and options.only not in load.name:
            continue
        n_bytes = rollout_bytes(synthetic_rollout(load, "synthetic-0"))
        measured = measure(load, options.rounds, options.seconds)
        bare, rollouts = (statistics.median(column) for column in zip(*measured, strict=True))
        ratios = sorted(ours / ceiling for ceiling, ours in measured)
        rows.append(
            (
                load.name,
                f"{n_bytes:,}",
                f"{bare / 1e6:,.0f} MB/s",
                f"{rollouts / 1e6:,.0f} MB/s",
                f"{rollouts / n_bytes:,.0f}",
                f"{statistics.median(ratios):.0%}",
                f"{ratios[0]:.0%} to {ratios[-1]:.0%}",
                load.target,
            )
        )
    print(f"\n{N_ACTORS} synthetic actors, {options.rounds} rounds of {options.seconds} s; median of ratios a round")
    print_table(("rollout", "bytes", "bare stream", "in the slot", "rollouts/s", "ratio", "rounds", "target"), rows)


if __name__ == "__main__":
    main()
