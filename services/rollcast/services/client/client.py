"""The typed client: values in, values out, errors from the tree."""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from rollcast.services.client.channel import make_channel
from rollcast.services.errors import InvalidTensorError
from rollcast.services.limits.limits import CALL_TIMEOUT_S, POLICY_TIMEOUT_S, UPDATE_TIMEOUT_S
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.policies import PolicyState
from rollcast.services.policies.subscription import PolicySubscription
from rollcast.services.rollouts.join import JoinAgreement, JoinOffer
from rollcast.services.rollouts.join_codec import join_agreement_from_proto, join_offer_to_proto
from rollcast.services.rollouts.uplink import RolloutUplink
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, Observation
from rollcast.services.status.codec import actor_from_proto, status_from_proto
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.description_codec import description_from_proto
from rollcast.services.status.status import ActorInfo, LearnerStatus
from rollcast.services.wire.error_status import error_from_rpc, parse_response
from rollcast.services.wire.seal import seal
from rollcast.services.wire.tensors import tensor_from_proto, tensor_to_proto
from rollcast.v1 import (
    learner_pb2,
    learner_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    rollout_pb2,
    tensor_pb2,
)

_Request = TypeVar("_Request")


class LearnerClient:
    """A learner, from anywhere. Safe from many threads. Every method raises errors of `rollcast.services.errors` only.

    `LearnerUnreachableError` when nobody answers by the deadline; beyond that, what the learner raised.

    Example:
        >>> with LearnerClient("127.0.0.1:50051") as learner:
        ...     print(learner.status().env_steps_per_second)

    Args:
        address: "host:port" or "unix:/path".
        timeout_s: Deadline of every unary call, in seconds; get_policy has 30 at least, pause and save_checkpoint 60.
        security: Certificates and token.

    Raises:
        ConfigurationError: The address is malformed, or a file of `security` cannot be used.
    """

    def __init__(
        self, address: str, *, timeout_s: float = CALL_TIMEOUT_S, security: ClientSecurity = PLAIN_CLIENT
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._channel = make_channel(address, security)
        # sealed, and without a deserialiser: damage is to be noticed on either side
        self._join: Any = self._channel.unary_unary(
            "/rollcast.v1.RolloutService/Join",
            request_serializer=lambda request: seal(request.SerializeToString()),
            response_deserializer=None,
        )
        self._policies = policy_pb2_grpc.PolicyServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._learner = learner_pb2_grpc.LearnerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel; open streams end."""
        self._channel.close()

    def join(self, offer: JoinOffer, *, timeout_s: float | None = None) -> JoinAgreement:
        """Agrees with the learner on spaces and work; call it before every rollout stream.

        Args:
            offer: Who wants to act.
            timeout_s: How long the learner may take, in seconds; None: as for every call.

        Returns:
            What the actor shall do.

        Raises:
            InvalidInputError: A field is malformed, of the offer or of the agreement.
            SpacesMismatchError: The learner has other spaces.
            ProtocolMismatchError: The learner speaks another protocol, or has another network.
            LimitExceededError: The learner has as many actors as it takes.
            NotReadyError: The learner is starting or stopping, or a message was damaged: try again with backoff.
            UnreadableMessageError: What came is no message: try again a few times.
            LearnerUnreachableError: Nobody answers.
        """
        response = self._call(self._join, join_offer_to_proto(offer), timeout_s=timeout_s)
        return join_agreement_from_proto(parse_response(rollout_pb2.JoinResponse, response), offer)

    def open_rollout_stream(self, actor_id: str, incarnation: int) -> RolloutUplink:
        """Opens the stream rollouts travel on; errors come out of its `responses`.

        Args:
            actor_id: From the agreement.
            incarnation: From the agreement.

        Returns:
            The stream, which has no deadline.
        """
        return RolloutUplink(self._channel, self.address, actor_id, incarnation)

    def subscribe_policy(self, after_version: int = 0) -> PolicySubscription:
        """Subscribes to new policies; errors come out of the iteration.

        Args:
            after_version: Skip versions up to this one; 0: begin with the newest.

        Returns:
            The subscription, which has no deadline.
        """
        return PolicySubscription(self._channel, self.address, after_version)

    def get_policy(self) -> tuple[int, PolicyState]:
        """Gets the newest policy.

        Returns:
            Its version and its state_dict.

        Raises:
            NotReadyError: There is none yet.
            LimitExceededError: It is above 1 GiB.
            InvalidTensorError: What came is no policy.
            LearnerUnreachableError: Nobody answers.
        """
        assembler = PolicyAssembler()
        call = self._policies.GetPolicy(policy_pb2.GetPolicyRequest(), timeout=max(self._timeout_s, POLICY_TIMEOUT_S))
        try:
            for response in call:
                if (policy := assembler.add(response.chunk)) is not None:
                    return policy
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from error
        finally:
            call.cancel()
        raise InvalidTensorError(f"the policy of {self.address} ended in the middle; expected all chunks; get it again")

    def act(
        self, observation: Observation, *, deterministic: bool = False, substep_key: str = FLAT_SUBSTEP
    ) -> tuple[NDArray[Any], int]:
        """Asks the newest policy what to do.

        Args:
            observation: `[N, ...]` for every leaf of the observation space, by path.
            deterministic: The most likely action, or a sample.
            substep_key: Whose policy acts.

        Returns:
            Actions `[N, ...]` and the version that chose.

        Raises:
            InvalidTensorError: The observation does not fit the learner's observation space.
            NotReadyError: There is no policy yet.
            LearnerUnreachableError: Nobody answers.
        """
        leaves = [
            tensor_pb2.NamedTensor(path=path, tensor=tensor_to_proto(array, what=f"the observation at {path!r}"))
            for path, array in observation.items()
        ]
        request = policy_pb2.ActRequest(observation=leaves, deterministic=deterministic, substep_key=substep_key)
        response = self._call(self._policies.Act, request)
        return tensor_from_proto(response.action, what="the action"), response.policy_version

    def describe(self) -> LearnerDescription:
        """Asks what the learner learns, and from what: spaces, network, T, limits.

        Returns:
            The description; it holds for as long as the learner runs.

        Raises:
            NotReadyError: The learner does not know its spaces yet: try again with backoff.
            ProtocolMismatchError: The learner is from before this call.
            LearnerUnreachableError: Nobody answers.
        """
        response = self._call(self._learner.DescribeLearner, learner_pb2.DescribeLearnerRequest())
        return description_from_proto(response.description)

    def status(self) -> LearnerStatus:
        """How training stands, and what it is waiting for.

        Returns:
            The status.

        Raises:
            LearnerUnreachableError: Nobody answers.
        """
        return status_from_proto(self._call(self._learner.GetStatus, learner_pb2.GetStatusRequest()).status)

    def watch_status(self, interval_s: float = 1.0) -> Iterator[LearnerStatus]:
        """How training stands, again and again until it has ended. Closing the iterator ends the call.

        Args:
            interval_s: Seconds between two, 0.1 to 3600.

        Yields:
            The status.

        Raises:
            InvalidInputError: The interval is outside its range.
            NotReadyError: The learner is stopping.
            LearnerUnreachableError: Nobody answers.
        """
        call = self._learner.WatchStatus(learner_pb2.WatchStatusRequest(interval_s=interval_s))
        try:
            for response in call:
                yield status_from_proto(response.status)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from error
        finally:
            call.cancel()

    def actors(self) -> tuple[ActorInfo, ...]:
        """Every actor that has joined, by slot, those that have left included.

        Returns:
            The actors.

        Raises:
            LearnerUnreachableError: Nobody answers.
        """
        response = self._call(self._learner.ListActors, learner_pb2.ListActorsRequest())
        return tuple(actor_from_proto(actor) for actor in response.actors)

    def pause(self) -> None:
        """Stops updates; returns when none is running.

        Raises:
            RefusedError: Training has ended.
            LearnerUnreachableError: Nobody answers.
        """
        timeout_s = max(self._timeout_s, UPDATE_TIMEOUT_S)
        self._call(self._learner.Pause, learner_pb2.PauseRequest(), timeout_s=timeout_s)

    def resume(self) -> None:
        """Ends a pause.

        Raises:
            LearnerUnreachableError: Nobody answers.
        """
        self._call(self._learner.Resume, learner_pb2.ResumeRequest())

    def save_checkpoint(self) -> tuple[str, int]:
        """Writes a checkpoint.

        Returns:
            Its folder on the learner's machine, and the policy version in it.

        Raises:
            RefusedError: The run keeps no directory.
            LearnerUnreachableError: Nobody answers.
        """
        timeout_s = max(self._timeout_s, UPDATE_TIMEOUT_S)
        response = self._call(self._learner.SaveCheckpoint, learner_pb2.SaveCheckpointRequest(), timeout_s=timeout_s)
        return response.path, response.policy_version

    def stop(self) -> None:
        """Ends training after the update that is running; returns at once.

        Raises:
            LearnerUnreachableError: Nobody answers.
        """
        self._call(self._learner.Stop, learner_pb2.StopRequest())

    def is_serving(self, service: str = "") -> bool:
        """Whether the learner says that it serves.

        Args:
            service: A service's full name, `"rollcast.v1.RolloutService"`; empty: the whole server.

        Returns:
            What it says.

        Raises:
            LearnerUnreachableError: Nobody answers.
            UnknownActorError: There is no such service.
        """
        response = self._call(self._health.Check, health_pb2.HealthCheckRequest(service=service))
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def _call(self, method: Callable[..., Any], request: object, *, timeout_s: float | None = None) -> Any:  # noqa: ANN401  # the response, whose type the stubs do not know
        try:
            return method(request, timeout=self._timeout_s if timeout_s is None else timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from error
