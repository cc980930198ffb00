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
from rollcast.services.policies.evaluated import WaitForVersion
from rollcast.services.policies.relayed import EncodedSubscription
from rollcast.services.policies.subscribers import Subscribers
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation
from rollcast.tools.relay.link import OpenLink

logger = logging.getLogger(__name__)

_JOIN_TIMEOUT_S: Final = 5.0
# A thread without a learner looks this often whether the relay has been stopped.
_LOOK_S: Final = 0.5


class RelayedPolicies:
    """The newest policy of the learner: a `rollcast.services.policies.service.PolicySource`.

    Invariant: `newest` is a policy of the learner that is connected, or was until the connection broke. No actor joins
    another learner before `follow` has dropped it: versions of different learners cannot be compared.

    Args:
        refuse: Raises the error for calls that only the learner itself answers.
        stop: Ends every wait.
        encodings: The encodings to ask the learner for, besides whole files.
    """

    def __init__(
        self, refuse: Callable[[str], NoReturn], stop: threading.Event, encodings: Collection[PolicyEncoding] = ()
    ) -> None:
        self._refuse = refuse
        # Of the thread that takes policies: it has the last file over every reconnect.
        self._assembler = PolicyAssembler(encodings=encodings, keeps_file=True)
        self._ending = Ending(stop)
        self._changed = threading.Condition()  # guards all below
        # those of the learner that is connected; another learner's versions have others
        self._subscribers = Subscribers()
        self._link: OpenLink | None = None
        self._subscription: EncodedSubscription | None = None
        # Since when it lacks a version that the learner has, as it has heard; None: it does not.
        self._lacks_since: float | None = None
        # Seconds that it waits for it.
        self._may_last_s = SILENCE_S
        self._thread: threading.Thread | None = None

    @property
    def spaces(self) -> EnvironmentSpaces:
        """Refuses: `Act` is the learner's."""
        self._refuse("Act")

    @property
    def state_size(self) -> int:
        """Refuses: `Act` is the learner's."""
        self._refuse("Act")

    @property
    def frame_stack(self) -> int:
        """Refuses: `Act` is the learner's."""
        self._refuse("Act")

    @property
    def ended(self) -> bool:
        """True once the learner has said that training has ended."""
        return self._subscribers.ended

    @property
    def version(self) -> int:
        """The newest version; 0: there is none."""
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
        """Notes that an actor was given a credit with a version, or any newer one."""
        self._subscribers.want(actor_id, version)

    def take(self, actor_id: str, *, at_least: int, holds_version: int | None) -> EncodedPolicy | None:
        """Returns the newest version for an answer to an actor, if it is to be sent there; see `Subscribers.take`."""
        return self._subscribers.take(actor_id, at_least=at_least, holds_version=holds_version)

    def sent_version(self, actor_id: str) -> int:
        """Returns the last version that an actor was sent; see `Subscribers.sent_version`."""
        return self._subscribers.sent_version(actor_id)

    def told(self, learner_nonce: int, version: int) -> None:
        """Subscribes again if a version that the learner has does not come: its message was lost on its way.

        An actor that hears nothing for long asks the learner, see `rollcast.actor.connection.stall_detector`, and so
        does its relay. After each loss that was found, the next version may take twice as long: the link may only be
        slow.
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
        """Notes that an actor's rollout has come: until its next credit, it can use no version."""
        self._subscribers.pause(actor_id)

    @contextmanager
    def subscription(self, *, after_version: int, actor_id: str = "") -> Iterator[WaitForVersion]:
        """Opens a subscription to the policies of the learner that is connected; see `PolicySource`.

        Waiting raises `NotReadyError` once another learner is.
        """
        subscribers = self._subscribers
        with subscribers.subscription(after_version, actor_id) as wait:

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
        """Refuses: `Act` is the learner's."""
        del observation, substep_key, deterministic, state, previous
        self._refuse("Act")

    def follow(self, link: OpenLink) -> None:
        """Follows a learner that has just answered; drops the policy unless it came from the same learner."""
        with self._changed:
            if self._link is not None and self._link.learner_nonce != link.learner_nonce:
                before, self._subscribers = self._subscribers, Subscribers()
                before.end()  # wakes those that wait
            self._link, self._lacks_since = link, None
            if self._subscription is not None:
                self._subscription.cancel()
            self._changed.notify_all()

    def start(self) -> None:
        """Begins to take policies."""
        self._thread = threading.Thread(target=self._keep, name="rollcast-policies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends. Idempotent."""
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
        """Takes policies until the subscription ends, or another link is followed."""
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
        """Returns whether another link is to be followed, or none any more. Called with the lock held."""
        return self._ending.is_set() or self._link is not link

    def _is_due(self) -> bool:
        """Returns whether there are policies to be taken. Called with the lock held."""
        return self._link is not None and not self.ended

    def _delay_s(self, reconnects: Reconnects, error: RollcastError | None, lasted_s: float) -> float:
        if error is not None:
            logger.debug("lost the policies of the learner: %s", error)
        try:
            return reconnects.delay_after(error, lasted_s=lasted_s)
        except RollcastError as permanent:
            # A learner that sends no policies that can be read may be replaced; the link says whether it is there.
            logger.error("the learner's policies cannot be passed on: %s", permanent)  # noqa: TRY400  # it says all
            return _JOIN_TIMEOUT_S


class RelayedEvaluations:
    """The evaluators behind a relay, each with a subscription of its own: `EvaluatedPolicies` and `EvaluationSink`.

    Args:
        current: Returns the open connection to the learner.
        encodings: The encodings to ask the learner for, besides whole files.
    """

    def __init__(self, current: Callable[[], OpenLink], encodings: Collection[PolicyEncoding] = ()) -> None:
        self._current = current
        self._encodings = encodings

    @contextmanager
    def subscription(self, evaluator_id: str, incarnation: int, *, holds_version: int) -> Iterator[WaitForVersion]:
        """Opens an evaluator's subscription at the learner; its errors come from waiting."""
        subscription = self._current().client.subscribe_encoded(
            PolicyAssembler(encodings=self._encodings, keeps_file=True),
            evaluator_id=evaluator_id,
            incarnation=incarnation,
            after_version=holds_version,
        )
        # The learner sends the next version only once the one before was reported.
        versions: queue.Queue[EncodedPolicy | RollcastError] = queue.Queue()

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
        """Passes a report on."""
        self._current().client.report_evaluation(report)
