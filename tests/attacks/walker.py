"""A client that is honest but for one field: what precedes each message, and an honest one of every type."""

import contextlib
import dataclasses
import itertools
import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from rollcast.keda import external_scaler_pb2
from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RefusedError
from rollcast.services.inference.codec import network_to_bytes
from rollcast.services.inference.inference import InferenceNetwork, weights_digest
from rollcast.services.joining.join import ActorRole, JoinOffer
from rollcast.services.joining.join_codec import join_offer_to_proto
from rollcast.services.policies.spec_codec import policy_spec_to_proto
from rollcast.services.rollouts.codec import RolloutEncoder, rollout_to_proto
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue
from rollcast.services.security.security import ClientSecurity
from rollcast.services.spaces.codec import environment_spaces_to_proto
from rollcast.services.spaces.leaf_schema import leaf_schema
from rollcast.services.spaces.spaces import EnvironmentSpaces, space_leaves
from rollcast.v1 import (
    environment_pb2,
    history_pb2,
    inference_pb2,
    learner_pb2,
    policy_pb2,
    relay_pb2,
    replay_pb2,
    rollout_pb2,
    space_pb2,
    tensor_pb2,
)
from tests.attacks.fields import CannotFillError
from tests.play_messages import agent, hello, turn
from tests.rollouts import random_rollout

RELAY: Final = rollout_pb2.Relay(relay_id="walker", nonce=7)
# So many names take turns: an actor behind a relay may open ten streams a second.
_N_NAMES: Final = 30
_STREAM: Final = 1
_N_ENVS: Final = 2
_EVALUATION_S: Final = 30.0

_BOX: Final = tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[2], data=bytes(8))
_INTEGERS: Final = tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_INT64, shape=[2], data=b"\2\0\0\0\0\0\0\0" * 2)
_DISCRETE: Final = space_pb2.Space(discrete=space_pb2.Discrete(n=2))
_VALUE: Final = rollout_pb2.EventValue(statistic=0, group=["north"], value=1.0)
_EPOCH: Final = rollout_pb2.EpochStatistic(name="mean", reduction=rollout_pb2.STATISTIC_REDUCTION_MEAN)
_FAILURE: Final = rollout_pb2.ActorFailure(exception_type="ValueError", message="m", traceback="t", env_seed=1)
_KEDA: Final = external_scaler_pb2.ScaledObjectRef(name="actor", namespace="default", scalerMetadata={"minActors": "1"})

# An honest message of each type that needs no joined actor.
_PLAIN: Final[tuple[Message, ...]] = (
    _BOX,
    _DISCRETE,
    _VALUE,
    _EPOCH,
    _FAILURE,
    _KEDA,
    RELAY,
    tensor_pb2.NamedTensor(path="", tensor=_BOX),
    space_pb2.Box(low=_BOX, high=_BOX, shape=[2]),
    space_pb2.Discrete(n=2, start=0),
    space_pb2.MultiBinary(shape=[2]),
    space_pb2.MultiDiscrete(nvec=_INTEGERS, start=_INTEGERS),
    space_pb2.DictSpace(members=[space_pb2.NamedSpace(key="k", space=_DISCRETE)]),
    space_pb2.NamedSpace(key="k", space=_DISCRETE),
    space_pb2.TupleSpace(members=[_DISCRETE]),
    rollout_pb2.EpisodeStatistics(env_index=0, episode_return=1.0, n_steps=3, events=[_VALUE]),
    rollout_pb2.EventStatistic(event="e", name="n", epoch=[_EPOCH]),
    rollout_pb2.TensorFrame(sequence=1, offset=0),
    rollout_pb2.ActorActivity(state=rollout_pb2.ACTING_STATE_ACTING, seconds=[1.0] * 6, policy_version=1),
    relay_pb2.StreamEnd(clean=True),
    environment_pb2.EpisodeValue(name="score", value=1.0),
    learner_pb2.DescribeLearnerRequest(),
    learner_pb2.GetStatusRequest(),
    learner_pb2.WatchStatusRequest(interval_s=1.0),
    learner_pb2.ListActorsRequest(),
    learner_pb2.PauseRequest(),
    learner_pb2.ResumeRequest(),
    learner_pb2.SaveCheckpointRequest(),
    learner_pb2.StopRequest(),
    history_pb2.WatchHistoryRequest(interval_s=1.0),
    policy_pb2.GetPolicyRequest(),
    policy_pb2.SubscribePolicyRequest(after_version=0),
    replay_pb2.GetReplayInfoRequest(),
    replay_pb2.SampleRequest(batch_size=2, n_batches=1),
    replay_pb2.ResetRequest(),
    replay_pb2.UpdatePrioritiesRequest(
        keys=_INTEGERS, priorities=tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT64, shape=[2], data=bytes(16))
    ),
    external_scaler_pb2.GetMetricsRequest(scaledObjectRef=_KEDA, metricName="wanted_actors"),
    health_pb2.HealthCheckRequest(),
    health_pb2.HealthListRequest(),
    reflection_pb2.ServerReflectionRequest(list_services="*"),
    reflection_pb2.ExtensionRequest(containing_type="rollcast.v1.Space", extension_number=1),
)
PLAIN_BY_TYPE: Final = {message.DESCRIPTOR.full_name: message for message in _PLAIN}

# The content of fields of bytes: a message, of which each field is walked, too; or something without fields.
_HELD: Final = {
    "rollcast.v1.UpwardPart.message": rollout_pb2.StreamRolloutsRequest.DESCRIPTOR,
    "rollcast.v1.StreamEnd.status": status_pb2.Status.DESCRIPTOR,
    "rollcast.v1.StreamRolloutsRequest.body": None,
    "rollcast.v1.SubscribePolicyRequest.base_digest": None,
    "rollcast.v1.Tensor.data": None,
    "rollcast.v1.AgentTurn.observation": None,
    "rollcast.v1.AgentTurn.executed_action": None,
    "rollcast.v1.InferenceQuestion.weights_digest": None,
    "rollcast.v1.InferenceQuestion.observation": None,
    "rollcast.v1.InferenceQuestion.state": None,
    "google.protobuf.Any.value": None,
}


class Walker:
    """Clients of a learner, or of what serves as one, on one connection. Used by one thread.

    Args:
        security: With a token that may make every call.
        address_of_learner: Where the spaces are asked for, if not at the server.
    """

    def __init__(self, address: str, security: ClientSecurity, *, address_of_learner: str = "") -> None:
        self._stack = contextlib.ExitStack()
        self._client = self._stack.enter_context(LearnerClient(address, security=security, timeout_s=30.0))
        self._names = itertools.cycle(f"walker-{number}" for number in range(_N_NAMES))
        self._agreement: Any = None
        self._evaluator: _Evaluator | None = None
        self._address, self._security = address, security
        self._address_of_learner = address_of_learner or address
        with self._learner() as learner:
            self._described = learner.describe()
        self._spaces: EnvironmentSpaces = self._described.spaces
        (self._key,) = self._spaces
        rollout = _rollout_of(self._spaces, self._described.n_rollout_steps, _N_ENVS)
        # Its numbers are the joined actor's.
        self._rollout = rollout_to_proto(rollout)
        (self._deferred,) = RolloutEncoder().encode(rollout)
        self._makers: Mapping[str, Any] = {
            "rollcast.v1.JoinRequest": lambda: join_offer_to_proto(self._offer("joiner")),
            "rollcast.v1.SubstepSpaces": lambda: environment_spaces_to_proto(self._spaces)[0],
            "rollcast.v1.Rollout": self._whole_rollout,
            "rollcast.v1.SubstepColumns": lambda: self._whole_rollout().substeps[0],
            "rollcast.v1.OpenStream": self._opening,
            "rollcast.v1.StreamRolloutsRequest": lambda: rollout_pb2.StreamRolloutsRequest(
                rollout=self._whole_rollout()
            ),
            "rollcast.v1.UpwardPart": self._part,
            "rollcast.v1.StreamBundlesRequest": lambda: relay_pb2.StreamBundlesRequest(parts=[self._part()]),
            "rollcast.v1.ReportEvaluationRequest": self._report,
            "rollcast.v1.Evaluation": lambda: self._report().evaluation,
            "rollcast.v1.ActRequest": self._act,
            "rollcast.v1.PlayRequest": lambda: hello("walker", offered=self._spaces),
            "rollcast.v1.Hello": lambda: hello("walker", offered=self._spaces).hello,
            "rollcast.v1.Turns": lambda: environment_pb2.Turns(turns=[self._turn()]),
            "rollcast.v1.EnvironmentTurn": self._turn,
            "rollcast.v1.AgentTurn": lambda: self._turn().agents[0],
            "rollcast.v1.PolicySpec": lambda: policy_spec_to_proto(self._described.policy),
            "rollcast.v1.InferRequest": lambda: inference_pb2.InferRequest(network=self._network()),
            "rollcast.v1.InferenceNetwork": self._network,
            "rollcast.v1.InferenceQuestion": self._question,
            "google.rpc.Status": lambda: status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="m"),
        }

    def close(self) -> None:
        """Ends it."""
        if self._evaluator is not None:
            self._evaluator.close()
        self._stack.close()

    def honest(self, descriptor: Descriptor) -> Message:
        """Returns an honest message of a type.

        Raises:
            CannotFillError: There is none of that type.
        """
        name = descriptor.full_name
        if name in PLAIN_BY_TYPE:
            return PLAIN_BY_TYPE[name]
        if name in self._makers:
            return self._makers[name]()  # type: ignore[no-any-return]
        if name == "google.protobuf.Any":
            return next(iter(status_pb2.Status(details=[{}]).details))
        raise CannotFillError(f"there is no honest {name} in tests/attacks/walker.py; add one")

    def held(self, field: FieldDescriptor) -> Descriptor | None:
        """Returns the type of the message that bytes hold; None: they hold none.

        Raises:
            CannotFillError: It is not known.
        """
        if field.full_name not in _HELD:
            raise CannotFillError(f"what the bytes of {field.full_name} hold is not in tests/attacks/walker.py; add it")
        return _HELD[field.full_name]

    def bases(self, method: MethodDescriptor) -> Iterable[Any]:
        """Returns what makes honest requests of a call, one for each kind that has fields of its own."""
        yield lambda: self.honest(method.input_type)
        if method.full_name == "rollcast.v1.RelayService.StreamBundles":
            yield lambda: relay_pb2.StreamBundlesRequest(open=RELAY, waiting=[RELAY])

    def before(self, method: MethodDescriptor, message: Message) -> list[Message]:
        """Returns the messages that have to come before a request on a stream.

        Raises:
            CannotFillError: It is not known what comes before that one.
        """
        if not method.client_streaming or "reflection" in method.full_name:
            return []
        if isinstance(message, rollout_pb2.StreamRolloutsRequest):
            return self._before_part(message)
        if isinstance(message, environment_pb2.PlayRequest):
            return [hello("walker", offered=self._spaces)] if message.HasField("turns") else []
        if isinstance(message, inference_pb2.InferRequest):
            return [inference_pb2.InferRequest(network=self._network())] if message.HasField("question") else []
        if not isinstance(message, relay_pb2.StreamBundlesRequest):
            raise CannotFillError(f"what comes before a message of {method.full_name} is not known here; add it")
        if message.HasField("open"):
            return []
        parts = []
        kind = message.parts[0].WhichOneof("part") if message.parts else None
        if kind in ("message", "ended"):
            parts.append(relay_pb2.UpwardPart(stream=_STREAM, open=self._opening()))
        elif kind not in ("open", None):
            raise CannotFillError(f"what comes before a part {kind!r} of a bundle is not known here; add it")
        if kind == "message" and message.parts[0].message != b"":
            inner = rollout_pb2.StreamRolloutsRequest()
            with contextlib.suppress(Exception):
                inner.ParseFromString(message.parts[0].message)
            parts += [
                relay_pb2.UpwardPart(stream=_STREAM, message=first.SerializeToString())
                for first in self._before_part(inner)[1:]
            ]
        before = [relay_pb2.StreamBundlesRequest(open=RELAY)]
        return [*before, relay_pb2.StreamBundlesRequest(parts=parts)] if parts else before

    def _before_part(self, message: rollout_pb2.StreamRolloutsRequest) -> list[Message]:
        kind = message.WhichOneof("message")
        if kind == "open":
            return []
        opening = rollout_pb2.StreamRolloutsRequest(open=self._opening())
        if kind in ("rollout", "failure", "activity", None):
            return [opening]
        if kind == "frame":
            first = rollout_pb2.StreamRolloutsRequest.FromString(self._deferred)
            first.rollout.MergeFrom(self._numbers())
            first.body = first.body[: len(first.body) // 2]
            first.ClearField("digest")
            return [opening, first]
        raise CannotFillError(f"what comes before a {kind!r} of a rollout stream is not known here; add it")

    def join(self, *, via_relay: bool) -> None:
        """Joins under the next name: the messages after it are of that actor."""
        offer = self._offer(next(self._names), via=((RELAY,) if via_relay else ()))
        self._agreement = self._client.join(offer)

    def _learner(self) -> LearnerClient:
        return LearnerClient(self._address_of_learner, security=self._security, timeout_s=30.0)

    def _offer(self, name: str, **changes: Any) -> JoinOffer:
        fields = {
            "actor_id": name,
            "process_nonce": 7,
            "spaces": self._spaces,
            "n_envs": _N_ENVS,
            "network": "auto",
            "software_version": "walker",
        }
        return JoinOffer(**(fields | changes))

    def _numbers(self) -> rollout_pb2.Rollout:
        agreement = self._agreement
        return rollout_pb2.Rollout(
            actor_id=agreement.actor_id,
            incarnation=agreement.incarnation,
            sequence=agreement.acknowledged_sequence + 1,
        )

    def _whole_rollout(self) -> rollout_pb2.Rollout:
        rollout = rollout_pb2.Rollout()
        rollout.CopyFrom(self._rollout)
        rollout.MergeFrom(self._numbers())
        return rollout

    def _opening(self) -> rollout_pb2.OpenStream:
        return rollout_pb2.OpenStream(actor_id=self._agreement.actor_id, incarnation=self._agreement.incarnation)

    def _part(self) -> relay_pb2.UpwardPart:
        message = rollout_pb2.StreamRolloutsRequest(rollout=self._whole_rollout())
        return relay_pb2.UpwardPart(stream=_STREAM, message=message.SerializeToString())

    def _act(self) -> policy_pb2.ActRequest:
        columns = self._rollout.substeps[0].last_observation
        return policy_pb2.ActRequest(observation=columns, deterministic=True, substep_key=self._key)

    def _turn(self) -> environment_pb2.EnvironmentTurn:
        return turn(agent(observation=self._seen()))

    def _seen(self) -> list[bytes]:
        (substep,) = self._spaces.values()
        return [
            bytes(math.prod(schema.shape) * schema.dtype.itemsize)
            for schema in map(leaf_schema, space_leaves(substep.observation).values())
        ]

    def _network(self) -> inference_pb2.InferenceNetwork:
        network = network_to_bytes(InferenceNetwork(self._spaces, self._described.policy))
        return inference_pb2.InferRequest.FromString(network).network

    def _question(self) -> inference_pb2.InferenceQuestion:
        with self._learner() as learner:
            version, state = learner.get_policy()
        return inference_pb2.InferenceQuestion(
            policy_version=version, weights_digest=weights_digest(state), n=1, observation=self._seen()
        )

    def _report(self) -> rollout_pb2.ReportEvaluationRequest:
        if self._evaluator is None:
            offer = self._offer("evaluator", role=ActorRole.EVALUATE)
            try:
                self._evaluator = _Evaluator(self._address, self._security, offer)
            except RefusedError:  # this server evaluates nothing
                evaluation = rollout_pb2.Evaluation(policy_version=1, returns=[1.0], lengths=[9], seconds=1.0)
                return rollout_pb2.ReportEvaluationRequest(actor_id="evaluator", incarnation=1, evaluation=evaluation)
        return self._evaluator.report()


class _Evaluator:
    """An evaluator that has joined, and is given versions to play with."""

    def __init__(self, address: str, security: ClientSecurity, offer: JoinOffer) -> None:
        with LearnerClient(address, security=security) as client:
            self._agreement = client.join(offer)
        self._channel = make_channel(address, security)
        request = policy_pb2.SubscribePolicyRequest(
            evaluator_id=self._agreement.actor_id, incarnation=self._agreement.incarnation
        )
        self._call = self._channel.unary_stream("/rollcast.v1.PolicyService/SubscribePolicy")(
            request.SerializeToString()
        )
        self._version = 0
        self._has_version = threading.Event()
        self._thread = threading.Thread(target=self._read, name="walking-evaluator")
        self._thread.start()

    def report(self) -> rollout_pb2.ReportEvaluationRequest:
        assert self._has_version.wait(_EVALUATION_S), "the evaluator was given no policy"
        n_episodes = self._agreement.evaluation.n_episodes
        return rollout_pb2.ReportEvaluationRequest(
            actor_id=self._agreement.actor_id,
            incarnation=self._agreement.incarnation,
            learner_nonce=self._agreement.learner_nonce,
            evaluation=rollout_pb2.Evaluation(
                policy_version=self._version, returns=[1.0] * n_episodes, lengths=[9] * n_episodes, seconds=1.0
            ),
        )

    def close(self) -> None:
        self._call.cancel()
        self._thread.join()
        self._channel.close()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in self._call:
                self._version = policy_pb2.SubscribePolicyResponse.FromString(message).chunk.version
                self._has_version.set()


def _rollout_of(spaces: EnvironmentSpaces, n_steps: int, n_envs: int) -> Rollout:
    """Returns a rollout with everything that one may have."""
    (key,) = spaces
    epoch = (EpochStatistic(name="mean", reduction="mean"),)
    value = EventValue(EventStatistic(event="e", name="n", epoch=epoch), ("north",), 1.0)
    episode = EpisodeStatistics(env_index=0, episode_return=1.0, n_steps=9, events=(value,))
    rollout = random_rollout(spaces, n_steps, n_envs, key=key, episodes=(episode,), events=(value,))
    return dataclasses.replace(rollout, valid=np.ones((n_steps, n_envs), np.bool_))
