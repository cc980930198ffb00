"""Measures ingest: rollouts of two synthetic actors on their way into a batch slot, beside a bare gRPC byte stream.

    python -m benchmarks.ingest [--seconds 1.5] [--rounds 7] [--only "64 KiB"]

Two processes send the same rollout for ever, without stepping an environment, over the connection that actors use. The
learner is in this process: server, intake, queue, and a batcher on the consumer's thread. A byte counts when it is in
the slot. In turns with it, two other processes send messages of the same size, with the same window, over a
bidirectional stream to a server that counts and acknowledges them. Rollouts of pixels are sent in messages of 1 MiB, so
the bare messages have that size, too.
"""

import argparse
import dataclasses
import multiprocessing
import time
from collections.abc import Callable
from ctypes import c_bool, c_longlong
from multiprocessing.sharedctypes import Synchronized
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from benchmarks.bare_streams import serve_uploads, upload
from benchmarks.table import Figure, print_table, ratio
from rollcast.learner.durable.rollouts import DurableRollouts
from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.joining.join import JoinOffer
from rollcast.services.limits.limits import MAX_FRAME_BYTES
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
from rollcast.services.security.security import PLAIN_CLIENT, PLAIN_SERVER, ClientSecurity, ServerSecurity
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces
from rollcast.services.status.status import ActorState

if TYPE_CHECKING:
    from rollcast.learner.batch import Batch

N_ACTORS = 2
# Rollouts in a batch; the queue holds one batch.
ROLLOUTS_PER_BATCH = 4
SETTLE_S = 0.3

FOUR_FLOATS = Box(-10, 10, (4,), np.float32)
PIXELS = Box(0, 255, (84, 84, 4), np.uint8)


@dataclasses.dataclass(frozen=True)
class Load:
    """The rollouts to send."""

    name: str
    observation: Box
    n_steps: int
    n_envs: int
    target: str
    # K: the policy stacks so many observations, and rollouts have single ones
    frame_stack: int = 1

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces of a flat environment."""
        return {FLAT_SUBSTEP: SubstepSpaces(observation=self.observation, action=Discrete(2))}


LOADS = (
    Load("64 KiB", FOUR_FLOATS, n_steps=32, n_envs=58, target="60%"),
    Load("256 KiB", FOUR_FLOATS, n_steps=32, n_envs=233, target="60%"),
    Load("1 MiB", FOUR_FLOATS, n_steps=128, n_envs=236, target="60%"),
    Load("pixels, B=4", PIXELS, n_steps=20, n_envs=4, target="250 MB/s"),
    Load("pixels, B=16", PIXELS, n_steps=20, n_envs=16, target="250 MB/s"),
)


def synthetic_rollout(load: Load, actor_id: str) -> Rollout:
    """Makes a rollout like an actor's: every column filled, a few episodes ended."""
    rng = np.random.default_rng(0)
    shape, space = (load.n_steps, load.n_envs), load.observation
    n_ended = min(4, load.n_envs)
    final_index = np.stack([rng.integers(0, load.n_steps, n_ended), np.arange(n_ended)], axis=1).astype(np.int32)

    def observation(*leading: int) -> dict[str, np.ndarray]:
        size = (*leading, *space.shape)
        values = rng.integers(0, 255, size) if space.dtype == np.uint8 else rng.normal(size=size)
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
                previous_observation=observation(load.n_envs, load.frame_stack - 1) if load.frame_stack > 1 else None,
            )
        },
        reward=np.ones(shape, np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, np.bool_),
        valid=None,
        final_index=final_index,
        episodes=tuple(EpisodeStatistics(env_index=b, episode_return=100.0, n_steps=100) for b in range(n_ended)),
        env_seeds=tuple(range(load.n_envs)),
    )


def rollout_bytes(rollout: Rollout) -> int:
    """The size of a rollout on the wire, in bytes."""
    return sum(map(len, RolloutEncoder().encode(rollout)))


def synthetic_actor(
    index: int,
    load: Load,
    address: str,
    sending: "Synchronized[bool]",
    security: ClientSecurity = PLAIN_CLIENT,
    has_digests: bool = True,
) -> None:
    """Process: sends rollouts while `sending` is set, as fast as its credits allow, until training ends."""
    from rollcast.actor.connection.learner import LearnerConnection
    from rollcast.services.rollouts import codec as rollout_codec
    from rollcast.services.streams import uplink as rollout_uplink
    from rollcast.services.wire.allocator import reuse_large_buffers

    if not has_digests:
        # without digests, like messages of another library
        vars(rollout_codec)["seal"] = vars(rollout_uplink)["seal"] = lambda head, _pieces=(): head

    reuse_large_buffers()  # as actors do
    actor_id = f"synthetic-{index}"
    rollout = synthetic_rollout(load, actor_id)
    offer = JoinOffer(
        actor_id=actor_id,
        process_nonce=index + 1,
        spaces=load.spaces,
        n_envs=load.n_envs,
        network=PolicySpec().network,
        software_version="benchmark",
    )
    sequence = 1
    with LearnerConnection(address, offer, security=security) as connection:
        connection.join()
        while not connection.ended:
            if not sending.value:
                time.sleep(0.001)
            elif connection.wait_for_credit(sequence, 0.1):
                connection.send(dataclasses.replace(rollout, sequence=sequence))
                sequence += 1


class Learner:
    """A learner with a server, which takes rollouts and does not train."""

    def __init__(
        self, load: Load, security: ServerSecurity = PLAIN_SERVER, durable: DurableRollouts | None = None
    ) -> None:

        from rollcast.learner.batching.batcher import Batcher
        from rollcast.learner.devices.copier import make_copier
        from rollcast.learner.queueing.queue import RolloutQueue
        from rollcast.learner.serving.intake import RolloutIntake
        from rollcast.learner.serving.publisher import PolicyPublisher
        from rollcast.learner.serving.registry import ActorRegistry
        from rollcast.learner.serving.seeds import ActorSeeds
        from rollcast.services.server.server import make_server
        from rollcast.services.wire.allocator import reuse_large_buffers

        reuse_large_buffers()  # as `rollcast train` and `rollcast learner` do
        batch_size = ROLLOUTS_PER_BATCH * load.n_envs
        spec = PolicySpec(frame_stack=load.frame_stack)
        rollout_shape = RolloutShape.played_with(spec, load.spaces, load.n_steps, load.n_envs)
        self._queue = RolloutQueue(batch_size)
        self._batcher = Batcher(
            rollout_shape,
            batch_size=batch_size,
            copier=make_copier("cpu"),
        )
        publisher = PolicyPublisher(load.spaces, spec, seed=0)
        publisher.publish({"weight": np.zeros(1, np.float32)})
        self._durable = durable
        if durable is not None:
            header = RecordingHeader(spaces=load.spaces, n_rollout_steps=load.n_steps, n_envs=load.n_envs)
            durable.open(header, None)
        self._registry = ActorRegistry(max_actors=N_ACTORS)
        intake = RolloutIntake(
            self._registry,
            self._queue,
            seeds=ActorSeeds(0),
            rollout_shape=rollout_shape,
            policy=spec,
            durable=durable,
        )
        # no status is asked for here
        control: Any = None
        self._server = make_server("127.0.0.1:0", sink=intake, source=publisher, control=control, security=security)
        self._server.start()
        self.address = self._server.address
        self._close = (intake.end_training, publisher.end, self._queue.close, self._server.stop)

    def wait_for_actors(self) -> None:
        """Waits until every actor's stream is open."""
        deadline = time.monotonic() + 30
        while sum(info.state is ActorState.STREAMING for info in self._registry.infos()) < N_ACTORS:
            assert time.monotonic() < deadline, "the synthetic actors did not come"
            time.sleep(0.05)

    def consume(self, duration_s: float, use: "Callable[[Batch], object]" = lambda batch: None) -> int:
        """Puts rollouts into batch slots for some seconds, and uses each batch; returns the number of trajectories."""
        n_trajectories = 0
        end = time.perf_counter() + duration_s
        while time.perf_counter() < end:
            piece = self._queue.get(self._batcher.n_missing, 0.1, enough=self._batcher.n_missing)
            if piece is not None:
                self._batcher.add(piece)
                n_trajectories += piece.n_trajectories
                if self._durable is not None:
                    self._durable.covered([piece.name])
            if not self._batcher.n_missing:
                use(self._batcher.finish().ready())
        return n_trajectories

    def close(self) -> None:
        """Stops serving."""
        for close in self._close:
            close()


def measure(load: Load, rounds: int, seconds: float) -> list[tuple[float, float]]:
    """Measures rounds of the bare stream and of rollouts, in bytes per second."""
    n_bytes = rollout_bytes(synthetic_rollout(load, "synthetic-0"))
    context = multiprocessing.get_context("spawn")
    received = context.Value(c_longlong, 0)
    sending_bytes, sending_rollouts = (context.Value(c_bool, False, lock=False) for _ in range(2))
    learner = Learner(load)
    processes = []

    def start(target: Callable[..., None], *args: object) -> None:
        processes.append(context.Process(target=target, args=args, daemon=True))
        processes[-1].start()

    def count(duration_s: float) -> int:
        before = received.value
        time.sleep(duration_s)
        return received.value - before

    def consume(duration_s: float) -> int:
        return learner.consume(duration_s) * n_bytes // load.n_envs

    def rate(sending: Any, receive: Callable[[float], int]) -> float:
        sending.value = True
        receive(SETTLE_S)
        started = time.perf_counter()
        n_received = receive(seconds)
        elapsed = time.perf_counter() - started
        sending.value = False
        receive(SETTLE_S)
        return n_received / elapsed

    try:
        receiver, sender = context.Pipe(duplex=False)
        start(serve_uploads, sender, received, N_ACTORS)
        bare_address = receiver.recv_bytes().decode()
        for index in range(N_ACTORS):
            start(upload, bare_address, bytes(min(n_bytes, MAX_FRAME_BYTES)), sending_bytes)
            start(synthetic_actor, index, load, learner.address, sending_rollouts)
        learner.wait_for_actors()
        rate(sending_bytes, count), rate(sending_rollouts, consume)
        return [(rate(sending_bytes, count), rate(sending_rollouts, consume)) for _ in range(rounds)]
    finally:
        for process in reversed(processes):  # clients first, or they log errors
            process.kill()
            process.join()
        learner.close()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; medians are printed")
    parser.add_argument("--only", help="measure only loads whose name contains this")
    options = parser.parse_args()
    rows = []
    for load in LOADS:
        if options.only and options.only not in load.name:
            continue
        n_bytes = rollout_bytes(synthetic_rollout(load, "synthetic-0"))
        measured = measure(load, options.rounds, options.seconds)
        bare, rollouts = zip(*measured, strict=True)
        rows.append(
            (
                load.name,
                f"{n_bytes:,}",
                Figure(bare, ",.0f", "MB/s", scale=1e-6),
                Figure(rollouts, ",.0f", "MB/s", scale=1e-6),
                Figure(rollouts, ",.0f", scale=1 / n_bytes),
                ratio(rollouts, bare, ".0%"),
                load.target,
            )
        )
    print(f"\n{N_ACTORS} synthetic actors, {options.rounds} rounds of {options.seconds} s; median of ratios a round")
    print_table(("rollout", "bytes", "bare stream", "in the slot", "rollouts/s", "ratio (rounds)", "target"), rows)


if __name__ == "__main__":
    main()
