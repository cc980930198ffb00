"""Wakes the subscribers of a policy that can use a newer version now, each by its own lock."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rollcast.services.limits.limits import MAX_CREDITED_POLICY_BYTES
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.evaluated import WaitForVersion

# A version costs the learner so much of a core for each actor that gets it, measured with 256 actors; and for each
# byte at most so much: the time of a broadcast of 6.75 MB to 32, receivers included. The whole file counts, also where
# an actor is sent less of it.
_SEND_S: Final = 100e-6
_BYTE_S: Final = 0.7e-9
# Sending versions that no subscriber waits for may take this share of a core.
_SHARE: Final = 0.1


class Subscribers:
    """The open subscriptions to a policy. Any thread may call.

    A subscription gets the newest version as soon as there is one, unless it is an actor's. An actor waits for a
    version only when it is given a credit, see `want`; then it gets the newest at once. While an actor plays, versions
    are throttled so that sending them takes at most a tenth of a core: an interval of 1 ms for each actor, and 7 ms for
    each actor and MB. Most would be replaced before its rollout ends. Once its rollout has come, see `pause`, it gets
    none before its next credit: where hundreds of actors wait for room, each gets one a rollout. A small version
    travels with the credit, see `take`: no thread of the subscription need be woken for it.

    An actor may have several subscriptions open for a while, of which its client has left all but one. The order of
    opening does not tell which one that is: the first one may be served last. So each gets what the actor wants.

    Invariant: a subscription never gets a version twice, nor one that was taken, nor an older one after a newer one; in
    the end the last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below; no thread waits while holding it
        self._newest: EncodedPolicy | None = None
        self._ended = False
        self._waiting: dict[_Subscriber, None] = {}  # in the order of their coming, in which they are woken
        # Those that wait and are paused: a new version does not look at them, however many they are.
        self._resting: dict[_Subscriber, None] = {}
        # By name: the open subscriptions of each actor, at least one.
        self._actors: dict[str, list[_Subscriber]] = {}

    @property
    def newest(self) -> EncodedPolicy | None:
        """The newest version; None before the first."""
        return self._newest

    @property
    def n_waiting(self) -> int:
        """The subscriptions that wait for a version."""
        with self._lock:
            return len(self._waiting) + len(self._resting)

    @property
    def ended(self) -> bool:
        """True once no further version will come."""
        return self._ended

    def offer(self, encoded: EncodedPolicy) -> None:
        """Wakes the subscribers that can use a new version."""
        with self._lock:
            self._newest = encoded
            now = time.monotonic()
            self._wake([one for one in self._waiting if self._due_s(one, now) <= 0.0])

    def end(self) -> None:
        """Notes that no further version will come, and wakes all."""
        with self._lock:
            self._ended = True
            self._wake([*self._waiting, *self._resting])

    def want(self, actor_id: str, version: int) -> None:
        """Notes that an actor waits for a version, or any newer one: it was given a credit for another rollout."""
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
        """Passes the newest version to an actor's rollout stream, instead of its subscriptions.

        Args:
            actor_id: The actor.
            at_least: The oldest version that it can use.
            holds_version: The version that it has; None: the last one that it was sent. Where a rollout stream broke,
                what was sent on it may not have arrived, and the subscription may have outlived it.

        Returns:
            The version; None if the actor has it or cannot use it, or has no subscription, or if the version has more
            than `MAX_CREDITED_POLICY_BYTES`.
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
        """Returns the last version that an actor was sent, or had when it subscribed; 0: none, or it has not.

        Of several subscriptions, the one that was sent least counts: the actor has that version for certain.
        """
        with self._lock:
            least: int | None = None
            for one in self._actors.get(actor_id, ()):
                if least is None or one.version < least:
                    least = one.version
            return least or 0

    def pause(self, actor_id: str) -> None:
        """Notes that an actor's rollout has come: the next one needs a credit, and so a `want`."""
        with self._lock:
            for one in self._actors.get(actor_id, ()):
                one.is_paused = True
                if one in self._waiting and self._due_s(one, 0.0) == math.inf:
                    del self._waiting[one]
                    self._resting[one] = None

    @contextmanager
    def subscription(self, after_version: int, actor_id: str) -> Iterator[WaitForVersion]:
        """Opens a subscription; see `rollcast.services.policies.service.PolicySource.subscription`."""
        one = _Subscriber(after_version, actor_id)
        if actor_id:
            with self._lock:
                self._actors.setdefault(actor_id, []).append(one)
        try:
            yield lambda timeout_s: self._wait(one, timeout_s)
        finally:
            if actor_id:
                with self._lock:
                    self._actors[actor_id].remove(one)
                    if not self._actors[actor_id]:
                        del self._actors[actor_id]

    def _wait(self, one: "_Subscriber", timeout_s: float) -> EncodedPolicy | None:
        """Waits for a version above the subscriber's; returns None if none came in time, or none will come."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                now = time.monotonic()
                due_s = self._due_s(one, now)
                newest = self._newest
                if newest is not None and newest.version > one.version and (due_s <= 0.0 or self._ended):
                    one.version, one.sent = newest.version, now
                    return newest
                left_s = deadline - now
                if self._ended or left_s <= 0.0:
                    return None
                # Minus infinity, that of an actor which was sent none yet, is due, and no rest.
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
        """Ends the waits of subscribers that wait. Called with the lock held."""
        for one in some:
            self._waiting.pop(one, None)
            self._resting.pop(one, None)
            one.woken.release()

    def _due_s(self, one: "_Subscriber", now: float) -> float:
        """Returns the seconds until a subscriber may have another version; 0 or less: now. With the lock held."""
        if not one.actor_id or one.wanted > one.version:
            return 0.0
        if one.is_paused:
            return math.inf
        n_bytes = 0 if self._newest is None else self._newest.n_bytes
        return one.sent + len(self._actors) * (_SEND_S + _BYTE_S * n_bytes) / _SHARE - now


class _Subscriber:
    """An open subscription.

    Attributes:
        actor_id: The actor's name; empty: it gets every version.
        version: The last version that it got, or had before.
        wanted: The version that it waits for, or one that it got.
        is_paused: True while it can use no version, see `Subscribers.pause`.
        sent: The time of the last version, by `time.monotonic`.
        woken: Held, unless it is being woken.
    """

    __slots__ = ("actor_id", "is_paused", "sent", "version", "wanted", "woken")

    def __init__(self, version: int, actor_id: str) -> None:
        self.version, self.actor_id = version, actor_id
        self.wanted, self.sent = 0, -math.inf
        self.is_paused = False
        self.woken = threading.Lock()
        self.woken.acquire()
