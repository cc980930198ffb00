"""The typed client of a learner."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from rollcast.services.client.calls import Client
from rollcast.services.errors import InvalidTensorError, PermissionDeniedError, ProtocolMismatchError
from rollcast.services.history.codec import updates_from_protos
from rollcast.services.history.history import HistoryUpdate
from rollcast.services.joining.activity import ActorActivity
from rollcast.services.joining.evaluation import EvaluationReport
from rollcast.services.joining.evaluation_codec import evaluation_report_to_proto
from rollcast.services.joining.join import JoinAgreement, JoinOffer
from rollcast.services.joining.join_codec import join_agreement_from_proto, join_offer_to_proto
from rollcast.services.limits.limits import CALL_TIMEOUT_S
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.policies import PolicyState
from rollcast.services.policies.subscription import PolicySubscription
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.spaces.leaf_schema import FLOAT32
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, Observation
from rollcast.services.status.codec import actor_from_proto, status_from_proto
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.description_codec import description_from_proto
from rollcast.services.status.status import ActorInfo, LearnerStatus
from rollcast.services.streams.uplink import RolloutUplink
from rollcast.services.wire.error_status import parse_response
from rollcast.services.wire.seal import seal
from rollcast.services.wire.tensors import tensor_from_proto, tensor_to_proto
from rollcast.v1 import (
    history_pb2,
    history_pb2_grpc,
    learner_pb2,
    learner_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    rollout_pb2,
    tensor_pb2,
)


class LearnerClient(Client):
    """A client of a learner. Safe from many threads. It raises only errors of `rollcast.services.errors`.

    Every method raises the learner's own errors, and `LearnerUnreachableError` if no learner answers by the deadline.

    Example:
        >>> with LearnerClient("127.0.0.1:50051") as learner:
        ...     print(learner.status().env_steps_per_second)

    Args:
        address: "host:port", "unix:/path" or "file:/path".
        timeout_s: Deadline of every unary call, in seconds. It is at least 30 for get_policy, and at least 60 for pause
            and save_checkpoint.
        security: Certificates and token.

    Raises:
        ConfigurationError: The address is malformed, a file of `security` cannot be used, or `timeout_s` is not above 0
            and at most 2,000,000.
    """

    def __init__(
        self, address: str, *, timeout_s: float = CALL_TIMEOUT_S, security: ClientSecurity = PLAIN_CLIENT
    ) -> None:
        super().__init__(address, timeout_s, security)
        # Sealed, and without a deserialiser, so that both sides notice damage.
        sealed = {
            name: self._channel.unary_unary(
                f"/rollcast.v1.RolloutService/{name}",
                request_serializer=lambda request: seal(request.SerializeToString()),
                response_deserializer=None,
            )
            for name in ("Join", "ReportEvaluation")
        }
        self._stubs = {
            "rollcast.v1.RolloutService": SimpleNamespace(**sealed),
            "rollcast.v1.PolicyService": policy_pb2_grpc.PolicyServiceStub(self._channel),  # type: ignore[no-untyped-call]
            "rollcast.v1.LearnerService": learner_pb2_grpc.LearnerServiceStub(self._channel),  # type: ignore[no-untyped-call]
            "rollcast.v1.HistoryService": history_pb2_grpc.HistoryServiceStub(self._channel),  # type: ignore[no-untyped-call]
            "grpc.health.v1.Health": health_pb2_grpc.HealthStub(self._channel),
        }

    def join(self, offer: JoinOffer, *, timeout_s: float | None = None) -> JoinAgreement:
        """Agrees with the learner on spaces and work. Call this before every rollout stream.

        Args:
            offer: The actor's offer.
            timeout_s: Deadline in seconds; None: the deadline of ordinary calls.

        Returns:
            The work that the learner assigns.

        Raises:
            InvalidInputError: A field of the offer or of the agreement is malformed.
            SpacesMismatchError: The learner has other spaces.
            ProtocolMismatchError: The learner speaks another protocol, or has another network.
            LimitExceededError: The learner has its largest number of actors.
            NotReadyError: The learner is starting or stopping, or a message was damaged: try again with backoff.
            UnreadableMessageError: The answer does not parse: try again a few times.
            LearnerUnreachableError: No learner answers.
        """
        response = self._call("/rollcast.v1.RolloutService/Join", join_offer_to_proto(offer), timeout_s=timeout_s)
        return join_agreement_from_proto(parse_response(rollout_pb2.JoinResponse, response), offer)

    def open_rollout_stream(
        self,
        actor_id: str,
        incarnation: int,
        *,
        activity: Callable[[], ActorActivity] | None = None,
        activity_interval_s: float = 0.0,
        report_with_rollout: bool = False,
        on_policy: Callable[[int, PolicyState, float], None] | None = None,
        policy_version: int = 0,
    ) -> RolloutUplink:
        """Opens the stream for rollouts, without a deadline. `RolloutUplink.responses` raises the errors.

        Args:
            actor_id: From the agreement.
            incarnation: From the agreement.
            activity: Returns the actor's activity; called from another thread. None: no reports.
            activity_interval_s: From the agreement: the time between two reports, in seconds.
            report_with_rollout: From the agreement: whether a report waits for a rollout that will follow soon.
            on_policy: Receives the policies in the learner's answers; see `RolloutUplink`.
            policy_version: The newest version that the actor has; 0: none.
        """
        return RolloutUplink(
            self._channel,
            self.address,
            actor_id,
            incarnation,
            activity=activity,
            activity_interval_s=activity_interval_s,
            report_with_rollout=report_with_rollout,
            on_policy=on_policy,
            policy_version=policy_version,
        )

    def report_evaluation(self, report: EvaluationReport) -> None:
        """Reports the episodes that an evaluator has played, or the reason for its end.

        Args:
            report: The report. The learner counts a repeated report once.

        Raises:
            UnknownActorError: The evaluator has not joined this learner.
            ActorReplacedError: Another process has joined under the same name.
            InvalidInputError: The learner did not assign this version to the evaluator, or the report has impossible
                numbers.
            RefusedError: This run has no evaluations.
            NotReadyError: The learner is stopping, or a message was damaged: try again with backoff.
            LearnerUnreachableError: No learner answers.
        """
        response = self._call("/rollcast.v1.RolloutService/ReportEvaluation", evaluation_report_to_proto(report))
        parse_response(rollout_pb2.ReportEvaluationResponse, response)

    def subscribe_policy(
        self,
        after_version: int = 0,
        *,
        evaluator_id: str = "",
        incarnation: int = 0,
        actor_id: str = "",
        assembler: PolicyAssembler | None = None,
    ) -> PolicySubscription:
        """Subscribes to new policies, without a deadline. Iteration over the subscription raises the errors.

        Args:
            after_version: Skip versions up to this version; 0: begin with the newest version.
            evaluator_id: An evaluator's name. The learner then sends only versions to evaluate, each after the report
                of the previous version. Empty: all versions.
            incarnation: The evaluator's incarnation.
            actor_id: The name of an actor that has joined. The learner sends the versions that the actor's credits
                require at once, and may delay the others. Empty: the learner sends every version at once.
            assembler: Decodes policies, keeps state across subscriptions, and determines the accepted encodings. None:
                whole files.
        """
        return PolicySubscription(
            self._channel,
            self.address,
            after_version,
            evaluator_id=evaluator_id,
            incarnation=incarnation,
            actor_id=actor_id,
            assembler=assembler,
        )

    def get_policy(self) -> tuple[int, PolicyState]:
        """Gets the newest policy.

        Returns:
            The policy's version and state_dict.

        Raises:
            NotReadyError: There is no policy yet.
            LimitExceededError: The policy is larger than 1 GiB.
            InvalidTensorError: The answer is not a policy.
            LearnerUnreachableError: No learner answers.
        """
        assembler = PolicyAssembler()
        called = self._responses("/rollcast.v1.PolicyService/GetPolicy", policy_pb2.GetPolicyRequest())
        with contextlib.closing(called) as responses:
            for response in responses:
                if (policy := assembler.add(response.chunk)) is not None:
                    return policy
        raise InvalidTensorError(f"the policy of {self.address} ended in the middle; expected all chunks; get it again")

    def act(
        self,
        observation: Observation,
        *,
        deterministic: bool = False,
        substep_key: str = FLAT_SUBSTEP,
        state: NDArray[np.float32] | None = None,
        previous: Observation | None = None,
    ) -> tuple[NDArray[Any], int]:
        """Returns the newest policy's actions.

        Args:
            observation: `[N, ...]` for every leaf of the observation space, by path.
            deterministic: Return the greedy action instead of a sample.
            substep_key: The substep to act in.
            state: float32 `[N, S]` of a recurrent policy, changed in place to the next state; S is
                `describe().policy.state_size`. Start with zeros, and set a row to 0 when its episode begins. None: the
                policy is not recurrent, or all episodes begin.
            previous: `[N, K - 1, ...]` for every leaf: the previous frames, the oldest first, if the policy stacks K
                frames. K is `describe().policy.frame_stack`. For an episode that begins, repeat its observation. None:
                the policy takes single frames, or all episodes begin.

        Returns:
            Actions `[N, ...]` and the version of the policy.

        Raises:
            InvalidTensorError: The observation does not fit the learner's observation space, or the state or the
                previous frames do not fit its policy.
            NotReadyError: There is no policy yet.
            LearnerUnreachableError: No learner answers.
        """
        request = policy_pb2.ActRequest(
            observation=_named(observation, "the observation"),
            deterministic=deterministic,
            substep_key=substep_key,
            previous_observation=_named(previous or {}, "the previous observation"),
        )
        if state is not None:
            request.state.CopyFrom(tensor_to_proto(state, what="the state"))
        response = self._call("/rollcast.v1.PolicyService/Act", request)
        if state is not None:
            state[...] = tensor_from_proto(response.state, dtype=FLOAT32, shape=state.shape, what="the state")
        return tensor_from_proto(response.action, what="the action"), response.policy_version

    def describe(self) -> LearnerDescription:
        """Returns the learner's spaces, network, T and limits.

        Returns:
            The description, which does not change while the learner runs.

        Raises:
            NotReadyError: The learner does not know its spaces yet: try again with backoff.
            ProtocolMismatchError: The learner is too old for this call.
            LearnerUnreachableError: No learner answers.
        """
        response = self._call("/rollcast.v1.LearnerService/DescribeLearner", learner_pb2.DescribeLearnerRequest())
        return description_from_proto(response.description)

    def status(self) -> LearnerStatus:
        """Returns the state of training, with the reason for the learner's wait, if any.

        Raises:
            LearnerUnreachableError: No learner answers.
        """
        return status_from_proto(
            self._call("/rollcast.v1.LearnerService/GetStatus", learner_pb2.GetStatusRequest()).status
        )

    def watch_status(self, interval_s: float = 1.0) -> Iterator[LearnerStatus]:
        """Yields the state of training at intervals until training ends. Closing the iterator ends the call.

        Args:
            interval_s: Seconds between two answers, 0.1 to 3600.

        Raises:
            InvalidInputError: The interval is outside its range.
            NotReadyError: The learner is stopping.
            LearnerUnreachableError: No learner answers.
        """
        request = learner_pb2.WatchStatusRequest(interval_s=interval_s)
        for response in self._responses("/rollcast.v1.LearnerService/WatchStatus", request):
            yield status_from_proto(response.status)

    def watch_history(self, interval_s: float = 1.0) -> Iterator[HistoryUpdate]:
        """Yields the run's history until training ends: first the whole history, then updates.

        Closing the iterator ends the call.

        Args:
            interval_s: Seconds between two updates, 0.1 to 3600.

        Raises:
            InvalidInputError: The interval is outside its range.
            ProtocolMismatchError: The learner is too old for this call, or keeps no history.
            NotReadyError: Training has not started, or the learner is stopping.
            LearnerUnreachableError: No learner answers.
        """
        request = history_pb2.WatchHistoryRequest(interval_s=interval_s)
        yield from updates_from_protos(self._responses("/rollcast.v1.HistoryService/WatchHistory", request))

    def actors(self) -> tuple[ActorInfo, ...]:
        """Returns every actor that has joined, by slot, including actors that have left.

        Raises:
            LearnerUnreachableError: No learner answers.
        """
        actors: list[ActorInfo] = []
        min_slot = 0
        while True:
            page = self._call(
                "/rollcast.v1.LearnerService/ListActors", learner_pb2.ListActorsRequest(min_slot=min_slot)
            )
            actors += map(actor_from_proto, page.actors)
            if page.next_slot <= min_slot:
                return tuple(actors)
            min_slot = page.next_slot

    def pause(self) -> None:
        """Pauses training, and returns when no update is running.

        Raises:
            RefusedError: Training has ended.
            LearnerUnreachableError: No learner answers.
        """
        self._call("/rollcast.v1.LearnerService/Pause", learner_pb2.PauseRequest())

    def resume(self) -> None:
        """Ends a pause.

        Raises:
            LearnerUnreachableError: No learner answers.
        """
        self._call("/rollcast.v1.LearnerService/Resume", learner_pb2.ResumeRequest())

    def save_checkpoint(self) -> tuple[str, int]:
        """Writes a checkpoint.

        Returns:
            The checkpoint's folder on the learner's machine, and its policy version.

        Raises:
            RefusedError: The run has no directory.
            LearnerUnreachableError: No learner answers.
        """
        response = self._call("/rollcast.v1.LearnerService/SaveCheckpoint", learner_pb2.SaveCheckpointRequest())
        return response.path, response.policy_version

    def stop(self) -> None:
        """Ends training after the running update. Returns at once.

        Raises:
            LearnerUnreachableError: No learner answers.
        """
        self._call("/rollcast.v1.LearnerService/Stop", learner_pb2.StopRequest())

    def may_operate(self) -> bool:
        """Returns whether this client may pause, resume, save and stop: it has an operator's token, or needs no token.

        The client calls a method that does not exist. The learner checks the role first, so the call has no effect.

        Raises:
            UnauthenticatedError: The learner requires a token, or refuses this token.
            LearnerUnreachableError: No learner answers.
        """
        rpc = "/rollcast.v1.LearnerService/MayOperate"
        self._stubs["rollcast.v1.LearnerService"].MayOperate = self._channel.unary_unary(
            rpc,
            request_serializer=learner_pb2.StopRequest.SerializeToString,
            response_deserializer=learner_pb2.StopResponse.FromString,
        )
        try:
            self._call(rpc, learner_pb2.StopRequest())
        except PermissionDeniedError:
            return False
        except ProtocolMismatchError:
            pass
        return True

    def is_serving(self, service: str = "") -> bool:
        """Returns whether the learner reports that it serves.

        Args:
            service: A service's full name, `"rollcast.v1.RolloutService"`; empty: the whole server.

        Raises:
            LearnerUnreachableError: No learner answers.
            UnknownActorError: The server has no such service.
        """
        response = self._call("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service=service))
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def _named(leaves: Observation, what: str) -> list[tensor_pb2.NamedTensor]:
    return [
        tensor_pb2.NamedTensor(path=path, tensor=tensor_to_proto(array, what=f"{what} at {path!r}"))
        for path, array in leaves.items()
    ]
