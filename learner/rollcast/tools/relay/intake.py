"""Joins actors to the learner through a relay, and opens their streams."""

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from rollcast.services.errors import LimitExceededError, NotReadyError, RollcastError, UnknownActorError
from rollcast.services.joining.join import ActorRole, JoinAgreement, JoinOffer, Relay
from rollcast.services.limits.limits import MAX_RELAYS_IN_A_ROW, MAX_REMEMBERED_ACTORS
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.streams.bundled_stream import Answer
from rollcast.tools.relay.link import LearnerLink, OpenLink
from rollcast.tools.relay.stream import PolicyRequests, RelayedStream

logger = logging.getLogger(__name__)

# Bytes kept free for the message around an actor's message: together they must not exceed `MAX_MESSAGE_BYTES`.
_ROOM_BYTES: Final = 1024


class _Joined(NamedTuple):
    """An actor that has joined through this relay."""

    agreement: JoinAgreement
    spaces: EnvironmentSpaces
    offer: JoinOffer


class _Streaming(NamedTuple):
    """The open stream of an actor.

    Attributes:
        key: The number of the stream.
        cancel: Ends the stream.
    """

    key: int
    cancel: Callable[[], None]


class RelayIntake:
    """Serves actors as their learner would: a `RolloutSink` and a `BundleSink`, see `services/rollouts`.

    The learner itself decides about every join. A new stream of an actor replaces its old one, as at the learner.
    Thread-safe.

    Args:
        relay_id: This relay's name.
        link: The connection to the learner.
        max_actors: The most actors with an open stream.
        policies: Records which actors can use a policy.
    """

    def __init__(
        self,
        relay_id: str,
        link: LearnerLink,
        *,
        max_actors: int,
        policies: PolicyRequests,
    ) -> None:
        self._relay_id = relay_id
        self._link = link
        self._max_actors = max_actors
        self._policies = policies
        self._lock = threading.Lock()  # guards all below
        self._joined: dict[str, _Joined] = {}
        # By the actor's name.
        self._streaming: dict[str, _Streaming] = {}
        self._n_rollouts = 0
        self._n_bytes = 0
        self._last_key = 0

    def admit(
        self, relay: Relay, waiting: Sequence[Relay], lose: Callable[[RollcastError], None]
    ) -> AbstractContextManager[int]:
        """Admits a relay while this relay has a learner; see `BundleSink`."""
        return self._link.admit(relay, waiting, lose)

    @property
    def n_actors(self) -> int:
        """The number of actors with an open stream."""
        with self._lock:
            return len(self._streaming)

    @property
    def n_rollouts(self) -> int:
        """The number of forwarded rollouts, including resent rollouts."""
        with self._lock:
            return self._n_rollouts

    @property
    def n_bytes(self) -> int:
        """The bytes of the messages of forwarded rollouts."""
        with self._lock:
            return self._n_bytes

    def join(self, offer: JoinOffer) -> JoinAgreement:
        """Joins an actor or an evaluator to the learner.

        Raises:
            NotReadyError: The relay has no learner at this moment, or the offer has passed this relay before.
            LimitExceededError: This relay has too many actors, or the offer has passed too many relays.
            RollcastError: The learner has refused.
        """
        self._check_way(offer)
        link = self._link.current()
        if offer.role is ActorRole.ACT:
            with self._lock:
                self._check_room(offer.actor_id)
        agreement = link.client.join(dataclasses.replace(offer, via=(*offer.via, link.relay)))
        if agreement.learner_nonce != link.learner_nonce:
            # The call has reached the learner's successor before the link has noticed that the learner is gone.
            self._link.drop(link)
            raise NotReadyError(
                f"another learner has just taken over behind relay {self._relay_id!r}; join again with backoff"
            )
        agreement = dataclasses.replace(agreement, max_message_bytes=agreement.max_message_bytes - _ROOM_BYTES)
        if offer.role is ActorRole.ACT:
            self._policies.told(agreement.learner_nonce, agreement.policy_version)
            # Only the relay next to the actor sends it policies: neither the learner nor other relays do.
            sent = self._policies.version if offer.via else self._policies.sent_version(agreement.actor_id)
            agreement = dataclasses.replace(agreement, policy_version=sent)
            self._remember(_Joined(agreement, agreement.spaces or offer.spaces, offer))
            logger.debug("actor %s joined: incarnation %d", agreement.actor_id, agreement.incarnation)
        return agreement

    def open_stream(self, actor_id: str, incarnation: int, *, peer: str, cancel: Callable[[], None]) -> RelayedStream:
        """Opens the stream of an actor that has joined here; see `RolloutSink.open_stream`."""
        del peer
        return self._open(self._find(actor_id, incarnation, None), None, cancel)

    def open_bundled(
        self,
        actor_id: str,
        incarnation: int,
        *,
        relay: Relay,
        peer: str,
        answer: Callable[[Answer], None],
        later: Callable[[Callable[[], None]], None],
        cancel: Callable[[], None],
    ) -> RelayedStream:
        """Opens the stream of an actor that has joined through another relay and this one; see `BundleSink`."""
        del peer, later
        return self._open(self._find(actor_id, incarnation, relay), answer, cancel)

    def _open(
        self, joined: _Joined, answer: Callable[[Answer], None] | None, cancel: Callable[[], None]
    ) -> RelayedStream:
        link: OpenLink = self._link.current()
        if link.learner_nonce != joined.agreement.learner_nonce:
            raise UnknownActorError(
                f"actor {joined.agreement.actor_id!r} has joined another learner, which is gone: call Join first"
            )
        name = joined.agreement.actor_id
        with self._lock:
            self._check_room(name)
            self._last_key += 1
            key = self._last_key
            before = self._streaming.get(name)
            self._streaming[name] = _Streaming(key, cancel)
        if before is not None:
            before.cancel()
        try:
            return RelayedStream(
                link.bundles,
                joined.agreement,
                joined.spaces,
                answer=answer,
                cancel=cancel,
                passed_on=self._count,
                closed=lambda: self._closed(name, key),
                policies=self._policies,
            )
        except BaseException:
            self._closed(name, key)
            raise

    def _find(self, actor_id: str, incarnation: int, relay: Relay | None) -> _Joined:
        with self._lock:
            joined = self._joined.get(actor_id)
        if (
            joined is None
            or joined.agreement.incarnation != incarnation
            or relay != (joined.offer.via[-1] if joined.offer.via else None)
        ):
            raise UnknownActorError(
                f"actor {actor_id!r}, incarnation {incarnation}, has not joined through relay "
                f"{self._relay_id!r}: call Join first"
            )
        return joined

    def _check_way(self, offer: JoinOffer) -> None:
        names = [relay.relay_id for relay in offer.via]
        if any(map(self._link.is_own, offer.via)):
            # Relays of a loop notice it, and leave each other: not a RefusedError, which would end the actor.
            raise NotReadyError(
                f"relays form a loop: actor {offer.actor_id!r} returns to relay {self._relay_id!r} through "
                f"{names}; expected a learner at the end; try again with backoff, or correct the --learner-address of "
                "one of them"
            )
        if len(offer.via) >= MAX_RELAYS_IN_A_ROW:
            raise LimitExceededError(
                f"actor {offer.actor_id!r} comes through {len(names)} relays, {names}; expected at most "
                f"{MAX_RELAYS_IN_A_ROW} with {self._relay_id!r}; give each an address nearer to the learner",
                limit="max_relays_in_a_row",
            )

    def _check_room(self, name: str) -> None:
        """Checks the room for a stream, unless it replaces one. Called with the lock held."""
        n_actors = len(self._streaming)
        if n_actors >= self._max_actors and name not in self._streaming:
            raise LimitExceededError(
                f"{n_actors} actors have streams through relay {self._relay_id!r} and max_actors is "
                f"{self._max_actors}: start another relay, or raise its --max-actors",
                limit="max_actors",
            )

    def _remember(self, joined: _Joined) -> None:
        name = joined.agreement.actor_id
        with self._lock:
            self._joined.pop(name, None)
            if len(self._joined) >= MAX_REMEMBERED_ACTORS:
                del self._joined[next(iter(self._joined))]
            self._joined[name] = joined

    def _count(self, n_bytes: int) -> None:
        with self._lock:
            self._n_rollouts += 1
            self._n_bytes += n_bytes

    def _closed(self, name: str, key: int) -> None:
        with self._lock:
            if (streaming := self._streaming.get(name)) is not None and streaming.key == key:
                del self._streaming[name]
