"""Wakes the subscribers that can use a newer policy version. Each subscriber waits on its own lock."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rollcast.services.limits.limits import MAX_CREDITED_POLICY_BYTES
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.evaluated import OnEnd, WaitForVersion

# The learner's time on a core for sending a version to an actor, measured with 256 actors, and the most for each byte,
# measured with a broadcast of 6.75 MB to 32 actors, receivers included. The whole file counts, even if an actor is sent
# less.
_SEND_S: Final = 100e-6
_BYTE_S: Final = 0.7e-9
# Sending versions that no subscriber waits for may take this share of a core.
_SHARE: Final = 0.1


class Subscribers:
    """The open subscriptions to a policy. Safe from any thread.

    A subscription that is not an actor's gets every new version at once. An actor that gets a credit receives the
    newest version at once; see `want`. While an actor plays, versions are throttled, because later versions would
    replace most of them before its rollout ends. The interval is 1 ms for each actor, and 7 ms for each actor and MB.
    So sending takes at most a tenth of a core. After its rollout has arrived, the actor gets no version before its next
    credit; see `pause`. So hundreds of waiting actors get one version for each rollout. A small version travels with
    the credit, so the subscription's thread need not wake; see `take`.

    After reconnects, an actor may briefly have several open subscriptions, but reads only one of them. The order of
    opening does not show which one, so each of them gets the version that the actor needs.

    Invariant: the versions of a subscription strictly increase, and exclude the versions that `take` has returned.
    Every subscription finally gets the last version.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below; no thread waits while holding it
        self._newest: EncodedPolicy | None = None
        self._ended = False
        self._waiting: dict[_Subscriber, None] = {}  # in the order of arrival, which is the order of waking
        # The paused subscriptions among the waiting ones. A new version skips them at no cost, whatever their number.
        self._resting: dict[_Subscriber, None] = {}
        # By name: the open subscriptions of each actor, at least one.
        self._actors: dict[str, list[_Subscriber]] = {}

    @property
    def newest(self) -> EncodedPolicy | None:
        """The newest version; None before the first version."""
        return self._newest

    @property
    def n_waiting(self) -> int:
        """The number of subscriptions that wait for a version."""
        with self._lock:
            return len(self._waiting) + len(self._resting)

    @property
    def ended(self) -> bool:
        """True if no further version will follow."""
        return self._ended

    def offer(self, encoded: EncodedPolicy) -> None:
        """Wakes the subscribers that can use a new version."""
        with self._lock:
            self._newest = encoded
            now = time.monotonic()
            self._wake([one for one in self._waiting if self._due_s(one, now) <= 0.0])

    def end(self) -> None:
        """Notes that no further version will follow, and wakes all subscribers."""
        with self._lock:
            self._ended = True
            self._wake([*self._waiting, *self._resting])

    def want(self, actor_id: str, version: int) -> None:
        """Notes that an actor got a credit for another rollout, and waits for this version or a newer version."""
        with self._lock:
            for one in self._actors.get(actor_id, ()):
                one.is_paused = False
                if one in self._resting:
                    del self._resting[one]
                    self._waiting[one] = None
                if version <= max(one.version, one.wanted):
                    continue
                one.wanted = version
                if one in self._waiting and self._newest is not None and self._newest.version > one.version:
                    self._wake([one])

    def take(self, actor_id: str, *, at_least: int = 0, holds_version: int | None = None) -> EncodedPolicy | None:
        """Returns the newest version for an actor's rollout stream. The actor's subscriptions then skip this version.

        Args:
            actor_id: The actor.
            at_least: The oldest version that the actor can use.
            holds_version: The actor's version; None: the last version sent to the actor. That version may not have
                arrived if a rollout stream has broken, even if the subscription survived.

        Returns:
            The version; None if the actor already has it, cannot use it, or has no subscription, or if the version
            exceeds `MAX_CREDITED_POLICY_BYTES`.
        """
        with self._lock:
            open_ones, newest = self._actors.get(actor_id, ()), self._newest
            if newest is None or newest.n_bytes > MAX_CREDITED_POLICY_BYTES or newest.version < at_least:
                return None
            lacks_it = False
            for one in open_ones:
                has_version = one.version if holds_version is None else min(one.version, holds_version)
                lacks_it |= newest.version > has_version
            if not lacks_it:
                return None
            now = time.monotonic()
            for one in open_ones:
                one.version, one.sent = newest.version, now
            return newest

    def sent_version(self, actor_id: str) -> int:
        """Returns the last version sent to an actor, or its version at the start; 0: no version, or no subscription.

        With several subscriptions, returns the lowest of their versions, because the actor certainly has that version.
        """
        with self._lock:
            least: int | None = None
            for one in self._actors.get(actor_id, ()):
                if least is None or one.version < least:
                    least = one.version
            return least or 0

    def pause(self, actor_id: str) -> None:
        """Notes that an actor's rollout has arrived, so the actor needs no version before its next credit."""
        with self._lock:
            for one in self._actors.get(actor_id, ()):
                one.is_paused = True
                if one in self._waiting and self._due_s(one, 0.0) == math.inf:
                    del self._waiting[one]
                    self._resting[one] = None

    @contextmanager
    def subscription(self, after_version: int, actor_id: str, on_end: OnEnd | None = None) -> Iterator[WaitForVersion]:
        """Opens a subscription; see `rollcast.services.policies.service.PolicySource.subscription`."""
        one = _Subscriber(after_version, actor_id)
        if actor_id:
            with self._lock:
                self._actors.setdefault(actor_id, []).append(one)
        if on_end is not None:
            on_end(lambda: self._leave(one))
        try:
            yield lambda timeout_s: self._wait(one, timeout_s)
        finally:
            if actor_id:
                with self._lock:
                    self._actors[actor_id].remove(one)
                    if not self._actors[actor_id]:
                        del self._actors[actor_id]

    def _leave(self, one: "_Subscriber") -> None:
        """Ends the wait of a subscriber whose call has ended."""
        with self._lock:
            one.has_left = True
            if one in self._waiting or one in self._resting:
                self._wake([one])

    def _wait(self, one: "_Subscriber", timeout_s: float) -> EncodedPolicy | None:
        """Waits for a version above the subscriber's; returns None after `timeout_s`, at the end, or after `_leave`."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if one.has_left:
                    return None
                now = time.monotonic()
                due_s = self._due_s(one, now)
                newest = self._newest
                if newest is not None and newest.version > one.version and (due_s <= 0.0 or self._ended):
                    one.version, one.sent = newest.version, now
                    return newest
                left_s = deadline - now
                if self._ended or left_s <= 0.0:
                    return None
                # Minus infinity, for an actor that was sent no version yet, means due, not paused.
                (self._resting if due_s == math.inf else self._waiting)[one] = None
            self._block(one, min(left_s, due_s) if due_s > 0.0 else left_s)

    def _block(self, one: "_Subscriber", timeout_s: float) -> None:
        if one.woken.acquire(timeout=timeout_s):
            return
        with self._lock:
            if one in self._waiting or one in self._resting:
                self._waiting.pop(one, None)
                self._resting.pop(one, None)
            else:  # woken in between: it was released with the lock held, so this never waits
                one.woken.acquire(blocking=False)

    def _wake(self, some: "list[_Subscriber]") -> None:
        """Wakes waiting subscribers. Called with the lock held."""
        for one in some:
            self._waiting.pop(one, None)
            self._resting.pop(one, None)
            one.woken.release()

    def _due_s(self, one: "_Subscriber", now: float) -> float:
        """Returns the seconds until a subscriber may get another version; 0 or less: now. Called with the lock held."""
        if not one.actor_id or one.wanted > one.version:
            return 0.0
        if one.is_paused:
            return math.inf
        n_bytes = 0 if self._newest is None else self._newest.n_bytes
        return one.sent + len(self._actors) * (_SEND_S + _BYTE_S * n_bytes) / _SHARE - now


class _Subscriber:
    """An open subscription.

    Attributes:
        actor_id: The actor's name; empty: the subscriber is not an actor, and gets every version.
        version: The last version that the subscriber got, or had at the start.
        wanted: The version that the subscriber waits for, or an older version.
        is_paused: Whether the subscriber cannot use a version now; see `Subscribers.pause`.
        has_left: Whether the subscriber's call has ended.
        sent: The time when the last version was sent, by `time.monotonic`.
        woken: A lock, held except while the subscriber is being woken.
    """

    __slots__ = ("actor_id", "has_left", "is_paused", "sent", "version", "wanted", "woken")

    def __init__(self, version: int, actor_id: str) -> None:
        self.version, self.actor_id = version, actor_id
        self.wanted, self.sent = 0, -math.inf
        self.is_paused = self.has_left = False
        self.woken = threading.Lock()
        self.woken.acquire()
