"""Receives each policy from the learner once, and sends its bytes unchanged to all actors."""

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.connection.ending import Ending
from rollcast.actor.connection.reconnects import Reconnects
from rollcast.actor.connection.stall_detector import SILENCE_S
from rollcast.services.errors import NotReadyError, RollcastError
from rollcast.services.joining.evaluation import EvaluationReport
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.evaluated import OnEnd, WaitForVersion
from rollcast.services.policies.relayed import EncodedSubscription
from rollcast.services.policies.subscribers import Subscribers
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation
from rollcast.tools.relay.link import OpenLink

logger = logging.getLogger(__name__)

_JOIN_TIMEOUT_S: Final = 5.0
# Seconds between two checks for a stop of the relay, while it has no learner.
_LOOK_S: Final = 0.5


class RelayedPolicies:
    """The newest policy of the learner: a `rollcast.services.policies.service.PolicySource`.

    Invariant: `newest` is a policy of the connected learner, or of the previous learner. No actor joins another learner
    before `follow` has dropped that policy: versions of different learners cannot be compared.

    Args:
        refuse: Raises the error for calls that only the learner itself answers.
        stop: Ends every wait.
        encodings: The encodings to ask the learner for, besides whole files.
    """

    def __init__(
        self, refuse: Callable[[str], NoReturn], stop: threading.Event, encodings: Collection[PolicyEncoding] = ()
    ) -> None:
        self._refuse = refuse
        # For the thread that takes policies; keeps the last file over every reconnect.
        self._assembler = PolicyAssembler(encodings=encodings, keeps_file=True)
        self._ending = Ending(stop)
        self._changed = threading.Condition()  # guards all below
        # for the connected learner; another learner gets new ones
        self._subscribers = Subscribers()
        self._link: OpenLink | None = None
        self._subscription: EncodedSubscription | None = None
        # The time from which the relay has known of a version that it lacks; None: it lacks none.
        self._lacks_since: float | None = None
        # Seconds to wait for that version.
        self._may_last_s = SILENCE_S
        self._thread: threading.Thread | None = None

    @property
    def spaces(self) -> EnvironmentSpaces:
        """Refuses: only the learner answers `Act`."""
        self._refuse("Act")

    @property
    def state_size(self) -> int:
        """Refuses: only the learner answers `Act`."""
        self._refuse("Act")

    @property
    def frame_stack(self) -> int:
        """Refuses: only the learner answers `Act`."""
        self._refuse("Act")

    @property
    def ended(self) -> bool:
        """True once the learner has reported the end of training."""
        return self._subscribers.ended

    @property
    def version(self) -> int:
        """The newest version; 0: no policy yet."""
        newest = self._subscribers.newest
        return 0 if newest is None else newest.version

    def newest(self) -> EncodedPolicy:
        """Returns the newest version.

        Raises:
            NotReadyError: The relay has no policy yet.
        """
        newest = self._subscribers.newest
        if newest is None:
            raise NotReadyError("the relay has no policy of its learner yet; try again with backoff")
        return newest

    def want(self, actor_id: str, version: int) -> None:
        """Records an actor's credit for a version, or any newer version."""
        self._subscribers.want(actor_id, version)

    def take(self, actor_id: str, *, at_least: int, holds_version: int | None) -> EncodedPolicy | None:
        """Returns the newest version if the answer to an actor should contain it; see `Subscribers.take`."""
        return self._subscribers.take(actor_id, at_least=at_least, holds_version=holds_version)

    def sent_version(self, actor_id: str) -> int:
        """Returns the version that was last sent to an actor; see `Subscribers.sent_version`."""
        return self._subscribers.sent_version(actor_id)

    def told(self, learner_nonce: int, version: int) -> None:
        """Subscribes again if a version of the learner does not arrive, because its message was lost.

        An actor without an answer asks the learner through this relay; see `rollcast.actor.connection.stall_detector`.
        The learner's reply contains its newest version. After each loss, the relay waits twice as long for the next
        version, because the link may only be slow.
        """
        with self._changed:
            link, subscription = self._link, self._subscription
            if link is None or link.learner_nonce != learner_nonce or version <= self.version or subscription is None:
                return
            now = time.monotonic()
            if self._lacks_since is None:
                self._lacks_since = now
            if now - max(self._lacks_since, subscription.heard_at) < self._may_last_s:
                return
            self._lacks_since, self._may_last_s = now, 2 * self._may_last_s
            logger.warning("version %d of the policy was lost on its way; subscribing again", version)
            subscription.cancel()

    def pause(self, actor_id: str) -> None:
        """Records that an actor's rollout has arrived. Until its next credit, the actor can use no policy version."""
        self._subscribers.pause(actor_id)

    @contextmanager
    def subscription(
        self, *, after_version: int, actor_id: str = "", on_end: OnEnd | None = None
    ) -> Iterator[WaitForVersion]:
        """Opens a subscription to the policies of the connected learner; see `PolicySource`.

        Waiting raises `NotReadyError` once another learner is connected.
        """
        subscribers = self._subscribers
        with subscribers.subscription(after_version, actor_id, on_end) as wait:

            def wait_for_version(timeout_s: float) -> EncodedPolicy | None:
                if self._subscribers is not subscribers:
                    raise NotReadyError(
                        "another learner has taken over behind this relay; expected the same; subscribe again with "
                        "backoff"
                    )
                return wait(timeout_s)

            yield wait_for_version

    def act(
        self,
        observation: Observation,
        *,
        substep_key: str,
        deterministic: bool,
        state: NDArray[np.float32] | None = None,
        previous: Observation | None = None,
    ) -> NoReturn:
        """Refuses: only the learner answers `Act`."""
        del observation, substep_key, deterministic, state, previous
        self._refuse("Act")

    def follow(self, link: OpenLink) -> None:
        """Switches to a learner that has just answered; drops the policy unless it came from the same learner."""
        with self._changed:
            if self._link is not None and self._link.learner_nonce != link.learner_nonce:
                before, self._subscribers = self._subscribers, Subscribers()
                before.end()  # wakes the subscriptions that wait
            self._link, self._lacks_since = link, None
            if self._subscription is not None:
                self._subscription.cancel()
            self._changed.notify_all()

    def start(self) -> None:
        """Starts the thread that takes policies."""
        self._thread = threading.Thread(target=self._keep, name="rollcast-policies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends that thread. Idempotent."""
        self._ending.closing.set()
        with self._changed:
            if self._subscription is not None:
                self._subscription.cancel()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _keep(self) -> None:
        reconnects = Reconnects()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ending.is_set() or self._is_due(), _LOOK_S)
                link, is_due = self._link, self._is_due()
            if self._ending.is_set():
                return
            if link is None or not is_due:
                continue
            started = time.monotonic()
            error: RollcastError | None = None
            try:
                self._take_from(link, reconnects)
            except RollcastError as caught:
                error = caught
            if not self.ended:
                delay_s = self._delay_s(reconnects, error, time.monotonic() - started)
                with self._changed:
                    self._changed.wait_for(functools.partial(self._is_outdated, link), delay_s)

    def _take_from(self, link: OpenLink, reconnects: Reconnects) -> None:
        """Takes policies until the subscription ends, or the link is replaced."""
        with self._changed:
            if self._ending.is_set():  # `close` has ended the subscription before this one
                return
            subscription = self._subscription = link.client.subscribe_encoded(
                self._assembler, after_version=self.version
            )
        for policy in subscription:
            reconnects.progressed()
            with self._changed:
                if self._link is not link:
                    return
                self._lacks_since, self._may_last_s = None, SILENCE_S
                self._subscribers.offer(policy)
        with self._changed:
            if self._link is link and not subscription.is_cancelled:
                self._subscribers.end()

    def _is_outdated(self, link: OpenLink) -> bool:
        """Returns whether the link was replaced, or the relay ends. Called with the lock held."""
        return self._ending.is_set() or self._link is not link

    def _is_due(self) -> bool:
        """Returns whether there is a learner that may still send policies. Called with the lock held."""
        return self._link is not None and not self.ended

    def _delay_s(self, reconnects: Reconnects, error: RollcastError | None, lasted_s: float) -> float:
        if error is not None:
            logger.debug("lost the policies of the learner: %s", error)
        try:
            return reconnects.delay_after(error, lasted_s=lasted_s)
        except RollcastError as permanent:
            # A learner whose policies cannot be read may be replaced; the link finds out whether it still answers.
            logger.error("the learner's policies cannot be passed on: %s", permanent)  # noqa: TRY400  # it says all
            return _JOIN_TIMEOUT_S


class RelayedEvaluations:
    """The evaluators behind a relay, each with its own subscription: `EvaluatedPolicies` and `EvaluationSink`.

    Args:
        current: Returns the open connection to the learner.
        encodings: The encodings to ask the learner for, besides whole files.
    """

    def __init__(self, current: Callable[[], OpenLink], encodings: Collection[PolicyEncoding] = ()) -> None:
        self._current = current
        self._encodings = encodings

    @contextmanager
    def subscription(
        self, evaluator_id: str, incarnation: int, *, holds_version: int, on_end: OnEnd | None = None
    ) -> Iterator[WaitForVersion]:
        """Opens an evaluator's subscription at the learner; waiting raises the learner's errors."""
        subscription = self._current().client.subscribe_encoded(
            PolicyAssembler(encodings=self._encodings, keeps_file=True),
            evaluator_id=evaluator_id,
            incarnation=incarnation,
            after_version=holds_version,
        )
        # The learner sends the next version only after the report on the previous one.
        # None: the evaluator's call has ended.
        versions: queue.Queue[EncodedPolicy | RollcastError | None] = queue.Queue()
        if on_end is not None:
            on_end(lambda: versions.put(None))

        def read() -> None:
            try:
                for policy in subscription:
                    versions.put(policy)
            except RollcastError as error:
                versions.put(error)

        def wait_for_version(timeout_s: float) -> EncodedPolicy | None:
            try:
                found = versions.get(timeout=timeout_s)
            except queue.Empty:
                return None
            if isinstance(found, RollcastError):
                raise found
            return found

        reader = threading.Thread(target=read, name=f"rollcast-evaluator-{evaluator_id}", daemon=True)
        reader.start()
        try:
            yield wait_for_version
        finally:
            subscription.cancel()
            reader.join(_JOIN_TIMEOUT_S)

    def report(self, report: EvaluationReport) -> None:
        """Forwards a report to the learner."""
        self._current().client.report_evaluation(report)
