"""Forwards the messages of one actor's stream, and waits for the learner's answers."""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import LimitExceededError, NotReadyError, RollcastError
from rollcast.services.joining.activity import ActorActivity, ActorFailure
from rollcast.services.joining.join import JoinAgreement, JoinedActor
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.process.waiting import wait_for
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.streams.bundle_link import BundleLink
from rollcast.services.streams.bundled_stream import Answer

# Seconds for the learner to open the stream.
_OPEN_TIMEOUT_S: Final = 15.0


class PolicyRequests(Protocol):
    """Records which actors can use a policy now; see `rollcast.services.policies.subscribers.Subscribers`."""

    @property
    def version(self) -> int:
        """The newest version; 0: no policy yet."""

    def sent_version(self, actor_id: str) -> int:
        """Returns the version that was last sent to an actor; 0: none.

        Args:
            actor_id: The actor.
        """

    def told(self, learner_nonce: int, version: int) -> None:
        """Records the newest version of the learner.

        Args:
            learner_nonce: The random number of the learner's process.
            version: The version; 0: none, or not reported.
        """

    def want(self, actor_id: str, version: int) -> None:
        """Records an actor's credit.

        Args:
            actor_id: The actor.
            version: The policy version that the actor should play with, or any newer one.
        """

    def take(self, actor_id: str, *, at_least: int, holds_version: int | None) -> EncodedPolicy | None:
        """Returns the newest version if the answer to an actor should contain it.

        Args:
            actor_id: The actor.
            at_least: The oldest version that the actor can use.
            holds_version: The version that the actor has; None: the version that was last sent to it.
        """

    def pause(self, actor_id: str) -> None:
        """Records that an actor's rollout has arrived. Until its next credit, the actor can use no policy version.

        Args:
            actor_id: The actor.
        """


class RelayedStream:
    """An actor's stream at a relay: a `BundledStream` with the learner's answers, see `services/rollouts`.

    Invariant: the actor receives only acknowledgements and credits of the learner. The relay keeps a rollout until its
    messages are sent. The actor keeps the rollout until its acknowledgement.

    The stream's own thread uses it, except for `close`, and for the answers, which the link's thread delivers.

    Args:
        bundles: Carries the messages.
        agreement: The learner's agreement with the actor.
        spaces: The spaces, in the learner's order.
        answer: Takes the learner's answers, for an actor behind another relay; None: `accept` returns them.
        cancel: Ends the actor's stream from any thread.
        passed_on: Called with the bytes of each forwarded rollout.
        closed: Called when the stream is closed.
        policies: Records when the actor can use a policy, unless the actor is behind another relay.
    """

    def __init__(
        self,
        bundles: BundleLink,
        agreement: JoinAgreement,
        spaces: EnvironmentSpaces,
        *,
        answer: Callable[[Answer], None] | None,
        cancel: Callable[[], None],
        passed_on: Callable[[int], None],
        closed: Callable[[], None],
        policies: PolicyRequests,
    ) -> None:
        self._bundles = bundles
        self._max_message_bytes = agreement.max_message_bytes
        self._answer = answer
        self._cancel = cancel
        self._passed_on = passed_on
        self._closed = closed
        self._policies = policies
        self.joined = JoinedActor(
            actor_id=agreement.actor_id,
            incarnation=agreement.incarnation,
            rollout_shape=RolloutShape.played_with(
                agreement.policy, spaces, agreement.n_rollout_steps, agreement.n_envs
            ),
            activity_interval_s=agreement.activity_interval_s,
        )
        self._messages: list[bytes] = []
        # when the next report of the actor's time may be forwarded
        self._report_at = 0.0
        self._refusal: RollcastError | None = None
        # from the last answer: the oldest policy that the actor can use, and the one that it should use; None once its
        # subscription knows
        self._min_policy_version = 0
        self._wanted_version: int | None = None
        self._changed = threading.Condition()  # guards the five below
        self._progress: StreamProgress | None = None
        self._error: RollcastError | None = None
        # the learner answers when the stream is opened, and after each rollout
        self._n_awaited = 1
        self._n_answers = 0
        self._is_waited_for = False
        self._number = bundles.open_stream(self.joined.actor_id, self.joined.incarnation, self._take_answer)

    def received(self, serialized: bytes) -> None:
        """Keeps a message until the relay knows whether it belongs to a rollout or to a report.

        Raises:
            LimitExceededError: The message is too large to be forwarded.
        """
        if len(serialized) > self._max_message_bytes:
            raise LimitExceededError(
                f"actor {self.joined.actor_id!r} sent a message of {len(serialized)} bytes; expected at most "
                f"{self._max_message_bytes}, the max_message_bytes of its agreement; send it in frames",
                limit="max_message_bytes",
            )
        self._messages.append(serialized)

    def progress(self) -> StreamProgress:
        """Returns the learner's newest answer; waits for the first answer.

        Raises:
            NotReadyError: The learner did not answer in time.
            RollcastError: The learner has refused the stream.
        """
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        return self._await_answer(lambda: time.monotonic() < deadline)

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Forwards a rollout, and waits for the learner's answer, which may give no credit yet.

        Raises:
            NotReadyError: The connection to the learner, or to the actor, has ended.
            RollcastError: The learner has refused the rollout.
        """
        del rollout  # the relay forwards the received bytes, not the decoded rollout
        self._policies.pause(self.joined.actor_id)
        self._pass_on()
        return self._await_answer(is_active)

    def await_credit(self, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Waits for the learner's next credit for the actor.

        Raises:
            NotReadyError: The connection to the learner, or to the actor, has ended.
            RollcastError: The learner has ended the stream.
        """
        return self._await_answer(is_active, with_credit=True)

    def submit(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> None:
        """Forwards a rollout, and the learner's answer when it comes."""
        del rollout, is_active
        self._pass_on()

    def awaits_message(self, awaits: bool) -> None:
        """Requests the policy of the learner's last answer for the actor, unless that answer contained the policy.

        Ignores `awaits`, because the learner itself measures its waits.
        """
        wanted, self._wanted_version = self._wanted_version, None
        if wanted is not None:
            self._policies.want(self.joined.actor_id, wanted)

    def take_policy(self, *, holds_version: int | None = None) -> EncodedPolicy | None:
        """Returns the relay's newest policy for the next answer, if the policy is small and the actor lacks it."""
        policy = self._policies.take(
            self.joined.actor_id, at_least=self._min_policy_version, holds_version=holds_version
        )
        if policy is not None:
            self._wanted_version = policy.version
        return policy

    def acted(self, activity: ActorActivity, *, is_alone: bool) -> None:
        """Forwards a report of the actor's time, also from the middle of a rollout; drops reports that come too often.

        The relay forwards a report that came with a rollout together with that rollout.
        """
        del activity
        if not is_alone:
            return
        message, now = self._messages.pop(), time.monotonic()
        if now >= self._report_at:
            self._report_at = now + self.joined.activity_interval_s / 2
            self._bundles.send(self._number, [message], is_rollout=False)

    def fail(self, failure: ActorFailure) -> None:
        """Forwards the actor's last message."""
        del failure
        self._bundles.send(self._number, [self._messages.pop()], is_rollout=False)

    def rejected(self, error: RollcastError) -> None:
        """Keeps the reason of a refusal; `close` sends it to the learner."""
        self._refusal = error
        self._messages.clear()

    def close(self, *, clean: bool) -> None:
        """Tells the learner that the actor's stream has ended."""
        self._bundles.end_stream(self._number, clean=clean, refusal=self._refusal)
        self._closed()

    def _pass_on(self) -> None:
        messages, self._messages = self._messages, []
        with self._changed:
            self._n_awaited += 1
        self._bundles.send(self._number, messages)
        self._passed_on(sum(map(len, messages)))

    def _await_answer(self, is_active: Callable[[], bool], *, with_credit: bool = False) -> StreamProgress:
        def is_here() -> bool:
            return self._n_answers >= self._n_awaited and not (with_credit and self._lacks_credit())

        with self._changed:
            self._is_waited_for = True
            try:
                if not wait_for(self._changed, lambda: is_here() or self._error is not None, is_active=is_active):
                    raise NotReadyError(
                        f"the learner has not answered actor {self.joined.actor_id!r}: the actor is gone, or has "
                        "waited for too long; expected an answer; join again with backoff"
                    )
            finally:
                self._is_waited_for = False
            if not is_here() and self._error is not None:
                raise self._error
            assert self._progress is not None, "there was an answer"
            self._min_policy_version = self._progress.min_policy_version
            self._wanted_version = max(self._min_policy_version, self._policies.version)
            return self._progress

    def _lacks_credit(self) -> bool:
        """Returns whether the learner still owes the actor a credit. Called with the lock held."""
        progress = self._progress
        if progress is None or progress.end_of_training:
            return False
        return progress.credit_sequence <= progress.acknowledged_sequence

    def _take_answer(self, answer: Answer) -> None:
        """Takes an answer of the learner. Called by the link's thread."""
        if self._answer is not None:
            self._answer(answer)
            return
        with self._changed:
            if isinstance(answer, RollcastError):
                self._error = answer
            else:
                # A credit that comes later belongs to the previous answer.
                self._n_answers += not self._lacks_credit()
                self._progress = answer
            is_idle = not self._is_waited_for
            self._changed.notify_all()
        if is_idle and isinstance(answer, RollcastError):
            # The actor is silent, so no message of it would return the error. Its stream ends instead.
            self._cancel()
