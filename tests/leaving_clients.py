"""Clients that come to a server by the thousand and leave it, by every RPC and in every way; what the server keeps."""

import contextlib
import ctypes
import dataclasses
import enum
import gc
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import psutil
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from gymnasium import spaces

from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.experience.experience import FreshExperience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.replay.served import serve_buffers
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.learner.training.control import TrainingControl
from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.inference.codec import network_to_bytes
from rollcast.services.inference.inference import InferenceNetwork
from rollcast.services.joining.evaluation import EvaluationPlan
from rollcast.services.joining.join import ActorRole, JoinAgreement, JoinOffer, Relay
from rollcast.services.joining.join_codec import join_offer_to_proto, relay_to_proto
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.policies import PolicySpec, SavedPolicy
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.scaling.bounds import ActorBounds
from rollcast.services.security.security import PLAIN_SERVER
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.server.policy import make_policy_server
from rollcast.services.server.scaler import make_scaler_server
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces
from rollcast.services.status.status import LearnerStatus, Phase
from rollcast.services.wire.tensors import fill_tensor
from rollcast.tools.policy_server.command import PolicyControl
from rollcast.tools.policy_server.followed import FollowedPolicy
from rollcast.tools.scaling.controller import ScalingRules
from rollcast.tools.scaling.scaler import Scaler
from rollcast.v1.policy_pb2 import ActRequest, SubscribePolicyRequest
from rollcast.v1.relay_pb2 import StreamBundlesRequest, UpwardPart
from rollcast.v1.replay_pb2 import SampleRequest
from rollcast.v1.rollout_pb2 import ActorFailure, OpenStream, ReportEvaluationRequest, StreamRolloutsRequest
from tests.attacks.walker import PLAIN_BY_TYPE
from tests.buffers import make_buffer
from tests.chaos.proxy import Proxy
from tests.play_messages import hello, turn, turns
from tests.processes import DEADLINE_S, wait_until
from tests.relays import relaying
from tests.rollouts import CARTPOLE_LIKE, build_rollout, make_rollout
from tests.unit.actor.inference.served import Policies, engine_of

# Clients that are there at once, and the names that they share: a name is taken over again and again.
AT_ONCE: Final = 8
N_NAMES: Final = 6
# A rollout of these needs several messages: a client can leave in the middle of it.
_WIDE: Final[EnvironmentSpaces] = {
    "0": SubstepSpaces(observation=spaces.Box(-np.inf, np.inf, (30_000,), np.float32), action=spaces.Discrete(2))
}
_SMALL: Final = PolicySpec(hidden_sizes=(8,))
_N_ROLLOUT_STEPS: Final = 8
_ROOM: Final = {"max_actors": 64, "calls_per_second": 1e9, "calls_per_second_per_host": 1e9}


class Way(enum.Enum):
    """A way to leave."""

    CLEAN = "the call comes to its end, or the client ends it when it has read an answer"
    CANCELLED = "the client cancels the call, half of them before an answer"
    CUT = "the connection breaks, for half of the calls before an answer"


@dataclasses.dataclass
class Served:
    """A server in this process, and how to call it.

    Attributes:
        address: Where it serves.
        client: A client of it that stays; None: it is no learner.
        fill: Puts something into the replay buffer that it serves.
    """

    address: str
    client: LearnerClient | None = None
    fill: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.channel = make_channel(self.address)
        self.numbers = itertools.count(1)

    def methods(self) -> Iterator[tuple[str, MethodDescriptor]]:
        """Yields every RPC of every service, with its full name, as the server describes itself."""
        described = ProtoReflectionDescriptorDatabase(self.channel)
        pool = DescriptorPool(described)
        for service in sorted(described.get_services()):
            for method in pool.FindServiceByName(service).methods:
                yield f"/{service}/{method.name}", method

    def join(self, number: int, **offered: Any) -> JoinAgreement:
        """Has an actor join."""
        assert self.client is not None
        return self.client.join(offer_of(number, **offered))


def offer_of(number: int, **offered: Any) -> JoinOffer:
    """An actor under one of a few names, each time another process."""
    given = {"actor_id": f"actor-{number % N_NAMES}", "spaces": _WIDE, "n_envs": 2, "network": "auto"} | offered
    return JoinOffer(process_nonce=number, software_version="1", **given)


def _join(_: Served, number: int) -> list[Message]:
    return [join_offer_to_proto(offer_of(number))]


def _half_a_rollout(agreement: JoinAgreement) -> list[bytes]:
    shape = (_N_ROLLOUT_STEPS, 2)
    rollout = build_rollout(
        observation={"": np.zeros((*shape, 30_000), np.float32)},
        action=np.zeros(shape, np.int64),
        last_observation={"": np.zeros((2, 30_000), np.float32)},
        reward=np.zeros(shape, np.float32),
        actor_id=agreement.actor_id,
        incarnation=agreement.incarnation,
        policy_version=1,
    )
    *first, _ = RolloutEncoder().encode(rollout)
    assert first
    return first


def _stream_rollouts(served: Served, number: int) -> list[Message | bytes]:
    agreement = served.join(number)
    opening = OpenStream(actor_id=agreement.actor_id, incarnation=agreement.incarnation, takes_policies=number % 2 > 0)
    return [StreamRolloutsRequest(open=opening), *_half_a_rollout(agreement)]


def _stream_bundles(served: Served, number: int) -> list[Message]:
    relay = Relay(f"relay-{number % N_NAMES}", number)
    agreement = served.join(number, via=(relay,))
    opening = OpenStream(actor_id=agreement.actor_id, incarnation=agreement.incarnation)
    parts = [UpwardPart(stream=1, open=opening)]
    parts += [UpwardPart(stream=1, message=message) for message in _half_a_rollout(agreement)]
    return [StreamBundlesRequest(open=relay_to_proto(relay)), StreamBundlesRequest(parts=parts)]


def _report_evaluation(served: Served, number: int) -> list[Message]:
    agreement = served.join(number, actor_id=f"evaluator-{number % 3}", role=ActorRole.EVALUATE)
    identity = {"actor_id": agreement.actor_id, "incarnation": agreement.incarnation}
    failure = ActorFailure(exception_type="OSError", message="no display")
    return [ReportEvaluationRequest(learner_nonce=agreement.learner_nonce, failure=failure, **identity)]


def _subscribe_policy(served: Served, number: int) -> list[Message]:
    match number % 3:
        case _ if served.client is None:
            return [SubscribePolicyRequest()]
        case 0:
            return [SubscribePolicyRequest()]
        case 1:
            return [SubscribePolicyRequest(actor_id=served.join(number).actor_id)]
    agreement = served.join(number, actor_id=f"evaluator-{number % N_NAMES % 3}", role=ActorRole.EVALUATE)
    return [SubscribePolicyRequest(evaluator_id=agreement.actor_id, incarnation=agreement.incarnation)]


def _act(_: Served, __: int) -> list[Message]:
    request = ActRequest()
    fill_tensor(request.observation.add(path="").tensor, np.zeros((1, 30_000), np.float32))
    return [request]


def _sample(served: Served, _: int) -> list[Message]:
    # a client of Reset may have emptied it
    served.fill()
    return [SampleRequest(batch_size=2)]


Opener = Callable[[Served, int], "Sequence[Message | bytes]"]

# The messages with which a client opens an RPC, after what has to come before; of all others it is one message.
_OPENERS: Final[Mapping[str, Opener]] = {
    "/rollcast.v1.RolloutService/Join": _join,
    "/rollcast.v1.RolloutService/StreamRollouts": _stream_rollouts,
    "/rollcast.v1.RolloutService/ReportEvaluation": _report_evaluation,
    "/rollcast.v1.PolicyService/SubscribePolicy": _subscribe_policy,
    "/rollcast.v1.PolicyService/Act": _act,
    "/rollcast.v1.RelayService/StreamBundles": _stream_bundles,
    "/rollcast.v1.ReplayService/Sample": _sample,
    # clients without a name are given one each
    "/rollcast.v1.InferenceService/Infer": lambda _served, _number: [network_to_bytes(InferenceNetwork(_WIDE, _SMALL))],
    "/rollcast.v1.EnvironmentService/Play": lambda _served, _number: [hello(""), turns(turn())],
}


def opener_of(name: str, method: MethodDescriptor) -> Opener | None:
    """Returns what opens an RPC; None: neither is it here, nor is there an honest message of its type."""
    if name in _OPENERS:
        return _OPENERS[name]
    message = PLAIN_BY_TYPE.get(method.input_type.full_name)
    return None if message is None else lambda _served, _number: [message]


class _Visit:
    """One call of a client that comes and leaves."""

    def __init__(self, channel: grpc.Channel, name: str, messages: Sequence[Message | bytes]) -> None:
        self._messages = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]
        self._leaves = threading.Event()
        self._answers = channel.stream_stream(name)(self._requests(), timeout=DEADLINE_S)

    def _requests(self) -> Iterator[bytes]:
        yield from self._messages
        self._leaves.wait()

    def answer(self) -> bool:
        """Waits for an answer, and returns whether one came."""
        with contextlib.suppress(grpc.RpcError):
            return next(self._answers, None) is not None
        return False

    def end(self) -> grpc.StatusCode:
        """Says that nothing more comes, and reads to the end."""
        self._leaves.set()
        with contextlib.suppress(grpc.RpcError):
            for _ in self._answers:
                pass
        return self._answers.code()

    def cancel(self) -> None:
        """Leaves without a word."""
        self._answers.cancel()
        self._leaves.set()


# Their answers do not end by themselves when the client has said all that it has to say.
_ENDLESS: Final = frozenset({"Watch", "WatchStatus", "WatchHistory", "SubscribePolicy", "Sample", "StreamIsActive"})


def come_and_leave(served: Served, name: str, method: MethodDescriptor, way: Way, n: int) -> Counter[str]:
    """Lets clients call an RPC and leave it, `AT_ONCE` at a time; returns how their calls have gone, by words."""
    opener = opener_of(name, method)
    assert opener is not None
    outcomes: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(Proxy(int(served.address.rpartition(":")[2]), 0)))
        for first in range(0, n, AT_ONCE):
            channel = make_channel(proxy.address) if way is Way.CUT else served.channel
            opened = [opener(served, next(served.numbers)) for _ in range(min(AT_ONCE, n - first))]
            visits = [_Visit(channel, name, messages) for messages in opened]
            if way is Way.CLEAN:
                for visit in visits:
                    if method.name in _ENDLESS:
                        outcomes["answered" if visit.answer() else "refused"] += 1
                        visit.cancel()
                    else:
                        outcomes["answered" if visit.end() is grpc.StatusCode.OK else "refused"] += 1
                continue
            if method.server_streaming:
                for visit in visits[::2]:
                    visit.answer()
            if way is Way.CUT:
                wait_until(lambda: proxy.inject("cut", 0.0, 0.0), "a connection to cut")
                channel.close()
            for visit in visits:
                visit.cancel()
            outcomes["left"] += len(visits)
    return outcomes


@contextlib.contextmanager
def serving_learner(folder: Path) -> Iterator[Served]:
    """Serves all services of a learner; nobody trains."""
    policy = TorchPolicy(_WIDE, _SMALL)
    control = TrainingControl(algorithm="impala", run_dir=folder)
    buffer = make_buffer(CARTPOLE_LIKE, n_rollout_steps=3, sampler="prioritized", min_size=2)

    def fill() -> None:
        if buffer.info().size < 2:
            buffer.insert(make_rollout())

    actors = RemoteDistributedActors(
        policy,
        _N_ROLLOUT_STEPS,
        4,
        envs_per_actor=2,
        serving=ServingOptions(
            addresses=("127.0.0.1:0",),
            control=control,
            history=control,
            run_history=control.run_history,
            limits=Limits(**_ROOM),
            max_actors=64,
            replay=serve_buffers({"0": buffer}, CARTPOLE_LIKE, n_rollout_steps=3),
            evaluations=Evaluations(EvaluationPlan(n_episodes=1, seed=0), note=control.run_history.note),
        ),
    )
    control.attach(FreshExperience(actors), TrainingProgress(), lambda between: (folder, 1))
    with actors:
        actors.evaluate_newest(0)
        with LearnerClient(actors.addresses[0]) as client:
            yield Served(actors.addresses[0], client, fill)
        # the last actors have left without a word: nobody comes to hear of the end
        actors.cancel_waits()


@contextlib.contextmanager
def serving_relay(learner: str) -> Iterator[Served]:
    """Serves actors in the name of a learner."""
    with relaying(learner, limits=Limits(**_ROOM)) as relay, LearnerClient(relay.address) as client:
        # Its own subscription is the last of its calls that stay.
        wait_until(lambda: has_policy(client), "the relay's policy")
        yield Served(relay.address, client)


def has_policy(client: LearnerClient) -> bool:
    """Returns whether a relay has got a policy."""
    with contextlib.suppress(RollcastError):
        return client.get_policy()[0] > 0
    return False


@contextlib.contextmanager
def serving_scaler() -> Iterator[Served]:
    """Serves KEDA."""
    scaler = Scaler(lambda: LearnerStatus(phase=Phase.FINISHED), ScalingRules(), window_s=60.0, hold_s=60.0)
    scaler.look()
    server = make_scaler_server("127.0.0.1:0", scaler, bounds=ActorBounds(fewest=1, most=4))
    server.start()
    try:
        yield Served(server.address)
    finally:
        server.stop(0.0)


@contextlib.contextmanager
def serving_environments() -> Iterator[Served]:
    """Serves environments that dial in, where nobody acts, and inference for actors."""
    environments = DialledEnvironments(address="here")
    environments.agree(2 * AT_ONCE)
    environments.begin(range(2 * AT_ONCE))
    policies = Policies(1, TorchPolicy(_WIDE, _SMALL).state_arrays())
    with (
        engine_of(policies) as engine,
        EnvironmentServer("127.0.0.1:0", environments, inference=engine, limits=Limits(**_ROOM)) as server,
    ):
        yield Served(server.address)


@contextlib.contextmanager
def serving_policy(folder: Path) -> Iterator[Served]:
    """Serves the policy of a run."""
    run = RunDirectory.create(folder, "run")
    state = TorchPolicy(_WIDE, _SMALL).state_arrays()
    saved = SavedPolicy(spec=_SMALL, state=state, policy_version=1, env_steps=1, mean_return=0.0, spaces=_WIDE)
    run.write_policy("best", saved)
    policy = FollowedPolicy(run.path, name="best", network="auto", seed=0)
    server = make_policy_server(
        "127.0.0.1:0",
        source=policy.publisher,
        control=PolicyControl(policy, str(run.path), follows=True),
        limits=Limits(**_ROOM),
        security=PLAIN_SERVER,
    )
    server.start()
    try:
        yield Served(server.address)
    finally:
        policy.publisher.end()
        server.stop(0.0)


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Lets `Kept` count no object that is there already: libraries have half a million, which take it a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclasses.dataclass(frozen=True)
class Kept:
    """The things that this process keeps.

    Attributes:
        objects: The objects of rollcast and gRPC, by type.
        containers: The objects that hold others, of all the rest.
        threads: The threads.
        descriptors: The open descriptors.
        heap_bytes: The bytes that C's allocator has handed out, those of Python's large objects among them. Resident
            memory has what was free again besides, and more of it the more threads were at work at once.
        blocks: The small blocks of memory that Python's own allocator has handed out.
    """

    objects: Counter[str]
    containers: int
    threads: int
    descriptors: int
    heap_bytes: int
    blocks: int

    @classmethod
    def now(cls) -> "Kept":
        """Counts what is there after garbage is collected."""
        gc.collect()
        objects: Counter[str] = Counter()
        containers = 0
        for thing in gc.get_objects():
            kind = type(thing)
            if str(kind.__module__).partition(".")[0] in ("rollcast", "grpc", "grpc_health", "grpc_reflection"):
                objects[f"{kind.__module__}.{kind.__qualname__}"] += 1
            else:
                containers += 1
        process = psutil.Process()
        with process.oneshot():
            n_threads, n_descriptors = process.num_threads(), process.num_fds()
        return cls(objects, containers, n_threads, n_descriptors, _heap_bytes(), sys.getallocatedblocks())

    @property
    def n_calls(self) -> int:
        """The calls that the servers of this process answer, or wait for."""
        return sum(self.objects[name] for name in _CALLS)


class _MallInfo(ctypes.Structure):
    """The struct mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def _heap_bytes() -> int:
    """Returns the bytes that malloc has handed out in all its arenas, and those that it has mapped one by one."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo
    found = mallinfo2()
    return int(found.uordblks) + int(found.hblkhd)


_CALLS: Final = (
    "grpc._server._RPCState",
    "rollcast.services.limits.stream_gate.CallPlace",
    "rollcast.services.environments.play.EnvironmentPlay",
    "rollcast.services.limits.half_open_calls._HalfOpenCall",
)
