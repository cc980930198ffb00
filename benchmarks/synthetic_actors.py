"""A process that plays many actors at once: it sends rollouts that were made once, over real streams.

    python -m benchmarks.synthetic_actors localhost:50051 --actors 64

Every actor has a connection, a rollout stream and a subscription of its own, keeps to its credits and to the policy
that the learner asks for, takes policies with its credits, and reports its time as the learner wants it. One thread
serves all of them, so that hundreds fit beside a learner on two cores. They do not reconnect: if one call of theirs
ends before training has, the process says which and why, and fails.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import AsyncIterator

import grpc
import numpy as np

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import probe_spaces
from rollcast.services.client.channel import COMMON_OPTIONS
from rollcast.services.client.client import LearnerClient
from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.errors import RollcastError
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.services.joining.activity_codec import activity_to_proto
from rollcast.services.joining.join import JoinAgreement, JoinOffer
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces
from rollcast.services.wire.seal import seal
from rollcast.v1 import policy_pb2, rollout_pb2

_OPTIONS = (*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
_START_TIMEOUT_S = 120.0


def cartpole_spaces() -> EnvironmentSpaces:
    """The spaces of CartPole-v1."""
    return probe_spaces(EnvironmentFactory("CartPole-v1", vectorization="entry_point"))


def synthetic_rollout(agreement: JoinAgreement) -> Rollout:
    """Makes a rollout of CartPole-v1 in which every environment ends one episode."""
    rng = np.random.default_rng(agreement.slot)
    n_steps, n_envs = shape = (agreement.n_rollout_steps, agreement.n_envs)

    def observation(*leading: int) -> dict[str, np.ndarray]:
        return {"": rng.uniform(-0.4, 0.4, (*leading, 4)).astype(np.float32)}

    final_index = np.stack([rng.integers(0, n_steps, n_envs), np.arange(n_envs)], axis=1).astype(np.int32)
    terminated = np.zeros(shape, np.bool_)
    terminated[tuple(final_index.T)] = True
    return Rollout(
        actor_id=agreement.actor_id,
        incarnation=agreement.incarnation,
        sequence=1,
        policy_version=1,
        substeps={
            FLAT_SUBSTEP: SubstepColumns(
                observation=observation(*shape),
                action=rng.integers(0, 2, shape),
                log_prob=np.full(shape, -0.69, np.float32),
                last_observation=observation(n_envs),
                final_observation=observation(n_envs),
            )
        },
        reward=np.ones(shape, np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, np.bool_),
        valid=None,
        final_index=final_index,
        episodes=tuple(EpisodeStatistics(env_index=b, episode_return=20.0, n_steps=20) for b in range(n_envs)),
        env_seeds=tuple(range(n_envs)),
    )


class EndedCallError(Exception):
    """An actor cannot play on."""


class SyntheticActor:
    """One actor, from its stream's opening to the end of training.

    Args:
        address: The learner's address.
        agreement: The work that the learner has given it.
        play_s: The seconds that it takes for a rollout; 0: as fast as its credits allow.
    """

    def __init__(self, address: str, agreement: JoinAgreement, play_s: float) -> None:
        self._address = address
        self._agreement = agreement
        self._rollout = synthetic_rollout(agreement)
        self._play_s = play_s
        self._encoder = RolloutEncoder()
        self._changed = asyncio.Condition()
        self._credit = self._min_version = self._version = 0
        self._has_ended = False
        self._began = time.monotonic()

    async def run(self) -> None:
        """Plays until training has ended.

        Raises:
            EndedCallError: The learner has refused or ended a call of this actor before, or is gone.
        """
        async with grpc.aio.insecure_channel(self._address, options=_OPTIONS) as channel:
            calls = [asyncio.ensure_future(call) for call in (self._stream(channel), self._subscribe(channel))]
            try:
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for call in calls:
                    call.cancel()
                ends = await asyncio.gather(*calls, return_exceptions=True)
        for end in ends:
            if isinstance(end, grpc.aio.AioRpcError) and not self._has_ended:
                name, code = self._agreement.actor_id, end.code().name
                raise EndedCallError(f"{name} does not play any more: {code}: {end.details()}") from end

    async def _stream(self, channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream("/rollcast.v1.RolloutService/StreamRollouts")(self._requests())
        async for message in call:
            progress = rollout_pb2.StreamRolloutsResponse.FromString(message)
            async with self._changed:
                if progress.HasField("policy"):
                    self._version = max(self._version, progress.policy.version)
                self._credit, self._min_version = progress.credit_sequence, progress.min_policy_version
                self._has_ended = progress.end_of_training
                self._changed.notify_all()

    async def _subscribe(self, channel: grpc.aio.Channel) -> None:
        request = policy_pb2.SubscribePolicyRequest(actor_id=self._agreement.actor_id).SerializeToString()
        async for message in channel.unary_stream("/rollcast.v1.PolicyService/SubscribePolicy")(request):
            chunk = policy_pb2.SubscribePolicyResponse.FromString(message).chunk
            if chunk.index == chunk.count - 1:
                async with self._changed:
                    self._version = max(self._version, chunk.version)
                    self._changed.notify_all()
        # the learner has ended the subscription: the rollout stream says the same

    async def _requests(self) -> AsyncIterator[bytes]:
        agreed = self._agreement
        opening = rollout_pb2.OpenStream(
            actor_id=agreed.actor_id, incarnation=agreed.incarnation, takes_policies=True, policy_version=self._version
        )
        yield seal(rollout_pb2.StreamRolloutsRequest(open=opening).SerializeToString())
        # like real actors, not all in the same moment
        report_at = time.monotonic() + np.random.default_rng(agreed.slot).random()
        sequence = 1
        while not self._has_ended:
            may_start = await self._may_start(sequence)
            late_s = time.monotonic() - report_at
            report = None
            if agreed.activity_interval_s and late_s >= (0.0 if may_start else agreed.activity_interval_s / 2):
                report_at = time.monotonic() + agreed.activity_interval_s
                report = self._activity()
            if may_start:
                rollout = dataclasses.replace(self._rollout, sequence=sequence, policy_version=self._version)
                if self._play_s:
                    await asyncio.sleep(self._play_s)
                for message in self._encoder.encode(rollout, report):
                    yield message
                sequence += 1
            elif report is not None:
                request = rollout_pb2.StreamRolloutsRequest(activity=activity_to_proto(report))
                yield seal(request.SerializeToString())

    async def _may_start(self, sequence: int) -> bool:
        """Waits for credit and policy, for as long as no report is due."""

        def may_start() -> bool:
            return self._version > 0 and self._credit >= sequence and self._version >= self._min_version

        if not may_start():
            async with self._changed:
                try:
                    await asyncio.wait_for(self._changed.wait_for(lambda: self._has_ended or may_start()), 1.0)
                except TimeoutError:
                    return False
        return may_start() and not self._has_ended

    def _activity(self) -> ActorActivity:
        seconds = (0.0, time.monotonic() - self._began, 0.0, 0.0, 0.0, 0.0)
        return ActorActivity(state=ActingState.ACTING, seconds=seconds, policy_version=self._version, policy_age_s=0.0)


def join(address: str, names: list[str], n_envs: int) -> list[tuple[str, JoinAgreement]]:
    """Joins as many actors as there are names, where the learner sends them; waits until it serves."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    joined: list[tuple[str, JoinAgreement]] = []
    spaces = cartpole_spaces()
    with contextlib.ExitStack() as stack:
        clients = {address: stack.enter_context(LearnerClient(address))}
        while len(joined) < len(names):
            offer = JoinOffer(
                actor_id=names[len(joined)],
                process_nonce=int.from_bytes(os.urandom(7)) + 1,
                spaces=spaces,
                n_envs=n_envs,
                network=PolicySpec().network,
                software_version="benchmark",
            )
            try:
                agreed, where = clients[address].join(dataclasses.replace(offer, follows_redirect=True)), address
                if agreed.learner_address:
                    where = agreed.learner_address
                    if where not in clients:
                        clients[where] = stack.enter_context(LearnerClient(where))
                    agreed = clients[where].join(offer)
                joined.append((where, agreed))
            except RollcastError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
    return joined


async def _play(joined: list[tuple[str, JoinAgreement]], play_s: float) -> None:
    await asyncio.gather(*(SyntheticActor(address, agreed, play_s).run() for address, agreed in joined))


def main() -> None:
    """Plays the actors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="the learner's address, without TLS")
    parser.add_argument("--actors", type=int, default=64, help="actors to play")
    parser.add_argument("--first", type=int, default=0, help="number of the first, for its name")
    parser.add_argument("--envs", type=int, default=1, help="environments of an actor")
    parser.add_argument("--play-s", type=float, default=0.0, help="seconds for a rollout; 0: as fast as credits allow")
    options = parser.parse_args()
    names = [f"synthetic-{options.first + i}" for i in range(options.actors)]
    try:
        asyncio.run(_play(join(options.address, names, options.envs), options.play_s))
    except EndedCallError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
