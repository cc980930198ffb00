"""Holds the places of environments that dial in: takes their turns from the server, returns the policy's actions."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from rollcast.actor.dialling.batch_rule import BatchRule
from rollcast.actor.environments.structured import ActorId, Ended, Executed, Turn
from rollcast.actor.policies.action_masks import ACTION_MASK, ActionMask, action_mask_of
from rollcast.actor.seeds import derive_seed
from rollcast.services.environments.dialled import (
    AgentState,
    DialledClient,
    DialledTurn,
    EnvironmentActions,
    Farewell,
    Hello,
)
from rollcast.services.errors import (
    InvalidTurnError,
    NameTakenError,
    NotReadyError,
    RollcastError,
    ThrottledError,
)
from rollcast.services.limits.texts import quoted_names
from rollcast.services.process.waiting import LOOK_S
from rollcast.services.spaces.spaces import EnvironmentSpaces, check_spaces_match

_log = logging.getLogger(__name__)

# Seconds between two lines of the log about what is waited for.
_REPORT_EVERY_S: Final = 10.0
# A client is slow that takes so many seconds for a turn while others act, or a quarter of what it may take.
_SLOW_S: Final = 10.0
# Names of who chose actions that the log has, at most.
_MAX_CHOOSERS: Final = 16


class PlaceNews(NamedTuple):
    """The events at one place since its last news.

    Their order in time: the last turns, the client's departure, the turns.

    Attributes:
        place: Its index.
        has_left: Whether the environment that was there has left, in the middle of an episode or after one. Its last
            actions have no results.
        turns: The turns of the environment that is there now; all of one episode, or its end and the next one's first.
        last_turns: The end of an episode that the environment sent before it left.
    """

    place: int
    has_left: bool
    turns: tuple[Turn, ...]
    last_turns: tuple[Turn, ...] = ()


class _Place:
    """A place for an environment. Guarded by the lock of `DialledEnvironments`.

    Attributes:
        client: The client whose environment is there; None: it is free.
        environment: The environment's number there.
        turns: Its turns that the actor has not taken yet; at most two.
        has_left: Whether one has left whose turns were taken.
        last_turns: The end of its episode, if it came before that and the actor has not taken it yet.
        is_known: Whether a turn of the environment that is there was taken.
        n_taken: The environments that have had it.
        free_at: The time since which its client has to send a turn; None: it need not.
    """

    __slots__ = ("client", "environment", "free_at", "has_left", "is_known", "last_turns", "n_taken", "turns")

    def __init__(self) -> None:
        self.client: DialledClient | None = None
        self.environment = 0
        self.turns: deque[Turn] = deque()
        self.has_left = False
        self.last_turns: tuple[Turn, ...] = ()
        self.is_known = False
        self.n_taken = 0
        self.free_at: float | None = None


class _Arrival(NamedTuple):
    """A client that waits for its places."""

    client: DialledClient
    n_envs: int


class DialledEnvironments:
    """The places of an actor's environments that dial in: a sink of clients on one side, a vector on the other.

    Each environment of a client takes a free place, in the order of coming, and keeps it until its client leaves. The
    server's thread calls `open`, `take` and `leave`. The acting thread waits for the first client's `spaces`, hands out
    the places by `agree` and `begin`, and then, again and again: `wait` for a batch, hear the `news`, `act`.

        environments = DialledEnvironments(address="0.0.0.0:50052")
        with EnvironmentServer(address, environments):
            spaces = environments.wait_for_spaces(is_active)
            environments.agree(n_envs)
            environments.begin(seeds)         # one for each place
            while environments.wait(BatchRule(), is_active=is_active):
                for news in environments.news():
                    ...
                environments.act({place: [action, ...]}, policy_version=3)

    Invariant: an answer goes to the environment whose turn was heard. If another one has its place by then, the actions
    are dropped. No client makes another wait: the places of a client that leaves or stalls are free at once.

    Args:
        address: The address that clients dial, for the log.
        spaces: The spaces that every client must have; None: those of the first.
        stall_s: Seconds that a client may take to send a turn after its actions; then its places are given up.
        batch_size: Environments that act at once, at most; None: any number.

    Attributes:
        batch_size: See Args.
        n_batches: The times that actions were sent, so far.
    """

    def __init__(
        self,
        *,
        address: str,
        spaces: EnvironmentSpaces | None = None,
        stall_s: float = math.inf,
        batch_size: int | None = None,
    ) -> None:
        self.batch_size = batch_size
        self.n_batches = 0
        self._address = address
        self._stall_s = stall_s
        self._changed = threading.Condition()  # guards everything below
        self._spaces = spaces
        self._spaces_of = "the learner" if spaces is not None else ""
        self._n_envs = 0
        self._places: list[_Place] = []
        self._seeds: tuple[int, ...] = ()
        self._arrivals: list[_Arrival] = []
        # The places of each client, in the order of its environments; none before it is welcome.
        self._places_of: dict[DialledClient, tuple[int, ...]] = {}
        self._end: RollcastError | Farewell | None = None
        self._held: frozenset[int] = frozenset()
        # Places with something to hear, in the order in which it happened.
        self._heard: dict[int, None] = {}
        # Places that wait for actions, with the time since which they do; the oldest first.
        self._asking: dict[int, float] = {}
        self._n_live = 0
        # The number of requests that fill a batch.
        self._enough = math.inf
        self._masks: dict[str, ActionMask | None] = {}
        # Clients that were named as slow, each once.
        self._slow: set[DialledClient] = set()
        self._look_at = -math.inf
        # Those who have chosen actions in place of the policy, as far as the log has named them.
        self._choosers: set[str] = set()
        self._quiet_since = time.monotonic()
        self._report_at = self._quiet_since + _REPORT_EVERY_S

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces of each environment.

        Raises:
            NotReadyError: No client has come yet.
        """
        with self._changed:
            if self._spaces is None:
                raise NotReadyError("no client has dialled in yet; expected one, to know the spaces; wait for it")
            return self._spaces

    @property
    def num_envs(self) -> int:
        """The number of places."""
        with self._changed:
            return self._n_envs

    @property
    def n_live(self) -> int:
        """The number of places that an environment has."""
        with self._changed:
            return self._n_live

    @property
    def n_clients(self) -> int:
        """The number of clients that play or wait for places."""
        with self._changed:
            return len(self._places_of)

    # The server's side.

    def open(self, hello: Hello, client: DialledClient) -> None:
        """Takes a client; see `EnvironmentSink.open`.

        Raises:
            NameTakenError: A client of this name plays.
            InvalidSpaceError: It has an action mask of a wrong space.
            SpacesMismatchError: Its spaces are not those of the learner, or of the first client.
            ThrottledError: There are not enough free places.
        """
        with self._changed:
            if isinstance(self._end, RollcastError):
                raise self._end
            if any(other.name == client.name for other in self._places_of):
                raise NameTakenError(
                    f"a client {client.name!r} plays here already; expected another name; choose one, or none, and "
                    "the server does; if it is your own that broke off, try again later"
                )
            if not self._masks:
                self._masks = {key: action_mask_of(substep) for key, substep in (self._spaces or hello.spaces).items()}
            if self._spaces is None:
                self._spaces, self._spaces_of = hello.spaces, f"client {client.name!r}, the first,"
            else:
                check_spaces_match(
                    self._spaces,
                    hello.spaces,
                    expected_side=self._spaces_of,
                    offered_side=f"client {client.name!r}",
                )
            if self._places:
                self._seat(client, hello.n_envs)
            else:
                self._places_of[client] = ()
                self._arrivals.append(_Arrival(client, hello.n_envs))
            if isinstance(self._end, Farewell):
                client.end(self._end)
            self._changed.notify_all()

    def take(self, client: DialledClient, turns: Sequence[DialledTurn]) -> None:
        """Takes turns of a client; see `EnvironmentSink.take`.

        Raises:
            InvalidTurnError: The action mask of an agent that has to act allows no action.
        """
        now = time.monotonic()
        with self._changed:
            places = self._places_of.get(client)
            if not places:  # it was ended: its last turns do not count
                return
            for turn in turns:
                index = places[turn.environment]
                place = self._places[index]
                place.turns.append(self._structured(client, turn))
                place.free_at = now
                if turn.n_running:
                    self._asking[index] = now
                    place.free_at = None
                self._heard[index] = None
            n_ready = len(self._asking) - len(self._held)
            # The acting thread wakes up for the first request, to know its deadline, and for a full batch.
            if n_ready <= len(turns) or n_ready >= min(self._n_live - len(self._held), self._enough):
                self._changed.notify_all()

    def leave(self, client: DialledClient, reason: str) -> None:
        """Frees the places of a client; see `EnvironmentSink.leave`."""
        del reason
        with self._changed:
            self._free(client)

    # The acting thread's side.

    def wait_for_spaces(self, is_active: Callable[[], bool]) -> EnvironmentSpaces | None:
        """Waits for the first client; returns the spaces, or None once `is_active` returns False.

        Args:
            is_active: Called at least every second.
        """
        with self._changed:
            while self._spaces is None:
                if not is_active():
                    return None
                self._report()
                self._changed.wait(LOOK_S)
            return self._spaces

    def wait_for_clients(self, is_active: Callable[[], bool]) -> bool:
        """Waits for a client; returns False once `is_active` returns False.

        Args:
            is_active: Called at least every second.
        """
        with self._changed:
            while not self._places_of:
                if not is_active():
                    return False
                self._report()
                self._changed.wait(LOOK_S)
            return True

    def agree(self, n_envs: int) -> None:
        """Sets the number of places, which `begin` assigns. Clients of the run before must dial in again."""
        with self._changed:
            for client in [client for client, places in self._places_of.items() if places]:
                self._dismiss(client, Farewell(reason="another run begins: dial in again", training_ended=False))
            self._n_envs, self._places = n_envs, []

    def begin(self, seeds: Sequence[int]) -> None:
        """Assigns the places to clients that have dialled in, and to later ones.

        Args:
            seeds: A seed for each place; environments that take it later get others, derived from it.
        """
        with self._changed:
            assert len(seeds) == self._n_envs  # as agreed
            self._seeds = tuple(seeds)
            self._places = [_Place() for _ in seeds]
            self._heard, self._held, self._asking, self._n_live = {}, frozenset(), {}, 0
            self._quiet_since = time.monotonic()
            self._report_at = self._quiet_since + _REPORT_EVERY_S
            arrivals, self._arrivals = self._arrivals, []
            for arrival in arrivals:
                try:
                    self._seat(arrival.client, arrival.n_envs)
                except ThrottledError as error:
                    self._dismiss(arrival.client, error)

    def hold(self, places: Collection[int]) -> None:
        """Notes the places that wait for something else than actions: they count in no batch. The last call counts."""
        with self._changed:
            self._held = frozenset(self._asking.keys() & set(places))

    def wait(
        self,
        rule: BatchRule,
        *,
        forward_s: float = 0.0,
        until: float = math.inf,
        is_active: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Waits until a batch closes.

        Args:
            rule: Says when.
            forward_s: The seconds that the last forward pass took.
            until: The monotonic time at which to return in any case.
            is_active: Called at least every second; the wait ends once it returns False.

        Returns:
            True if a batch closes. False at `until`, when a client has left, or if `is_active` returned False.
        """
        with self._changed:
            self._enough = rule.max_size or math.inf
            while True:
                now = time.monotonic()
                # Also if there is always a batch: few clients may keep the actor busy.
                if now >= self._look_at:
                    self._look_at = now + LOOK_S
                    self._look_after(now)
                n_ready = len(self._asking) - len(self._held)
                deadline = rule.deadline(self._oldest(), forward_s)
                if rule.is_full(n_ready, self._n_live - len(self._held)) or deadline <= now:
                    self._quiet_since, self._report_at = now, now + _REPORT_EVERY_S
                    return True
                has_lost = any(self._places[index].has_left for index in self._heard)
                if has_lost or now >= until or not is_active():
                    return False
                self._report()
                self._changed.wait(max(0.0, min(deadline - now, until - now, LOOK_S)))

    def news(self) -> list[PlaceNews]:
        """Returns what has happened since the last call, place by place, in the order of its beginning."""
        with self._changed:
            heard, self._heard = self._heard, {}
            told = []
            for index in heard:
                place = self._places[index]
                told.append(PlaceNews(index, place.has_left, tuple(place.turns), place.last_turns))
                place.is_known = bool(place.turns) or (place.is_known and not place.has_left)
                place.has_left, place.last_turns = False, ()
                place.turns.clear()
            return told

    def act(self, actions: Mapping[int, Sequence[NDArray[Any]]], *, policy_version: int, progress: float = 0.0) -> None:
        """Sends the actions of some places, whose turns were heard.

        Args:
            actions: By place: one action for each agent that was RUNNING in its last turn, in that order.
            policy_version: The policy that chose them; -1: none did.
            progress: The progress of training in [0, 1].
        """
        by_client: dict[DialledClient, list[EnvironmentActions]] = {}
        now = time.monotonic()
        with self._changed:
            for index, chosen in actions.items():
                place = self._places[index]
                # Not heard yet: it is the turn of another environment, or there is none.
                if place.client is None or index not in self._asking or place.turns or place.has_left:
                    continue
                del self._asking[index]
                place.free_at = now
                by_client.setdefault(place.client, []).append(EnvironmentActions(place.environment, chosen))
            self.n_batches += bool(by_client)
        for client, answers in by_client.items():
            client.answer(answers, policy_version=policy_version, progress=progress)

    def set_progress(self, progress: float) -> None:
        """Does nothing: clients get the progress with their actions."""

    def refuse(self, error: RollcastError) -> None:
        """Ends all clients with an error of theirs. Others may come, whose spaces may be others.

        Args:
            error: The error that they get.
        """
        with self._changed:
            for client in list(self._places_of):
                self._dismiss(client, error)
            self._n_envs, self._places = 0, []
            self._spaces, self._spaces_of, self._masks = None, "", {}

    def end(self, reason: RollcastError | Farewell) -> None:
        """Ends all clients, and refuses those that come later. The first reason counts.

        Args:
            reason: The reason that they get.
        """
        with self._changed:
            self._end = self._end or reason
            for client in list(self._places_of):
                self._dismiss(client, reason)

    def close(self) -> None:
        """Ends all clients, which may come again. Idempotent."""
        self.end(Farewell(reason="the actor stops", training_ended=False))

    # Called with the lock held.

    def _seat(self, client: DialledClient, n_envs: int) -> None:
        free = [index for index, place in enumerate(self._places) if place.client is None][:n_envs]
        if len(free) < n_envs:
            raise ThrottledError(
                f"client {client.name!r} has {n_envs} environments, and {len(free)} of the actor's {len(self._places)} "
                "places are free; expected enough; raise --envs-per-actor of the actor, start another one, or try "
                "again later"
            )
        self._places_of[client] = tuple(free)
        now = time.monotonic()
        seeds = []
        for environment, index in enumerate(free):
            place = self._places[index]
            place.client, place.environment, place.free_at = client, environment, now
            # A game that dials in for each match must not begin all of them alike.
            seeds.append(derive_seed(self._seeds[index], place.n_taken) if place.n_taken else self._seeds[index])
            place.n_taken += 1
        self._n_live += n_envs
        client.welcome(seeds)

    def _free(self, client: DialledClient) -> None:
        """Frees the places of a client; does nothing the second time."""
        self._arrivals = [arrival for arrival in self._arrivals if arrival.client is not client]
        self._slow.discard(client)
        for index in self._places_of.pop(client, ()):
            place = self._places[index]
            if place.is_known and place.turns and not place.turns[0].observations:
                # The episode has ended, whatever its client does then.
                place.last_turns = (place.turns[0],)
            place.turns.clear()
            place.has_left = place.has_left or place.is_known
            if place.has_left:
                self._heard[index] = None
            else:
                self._heard.pop(index, None)
            place.client, place.is_known, place.free_at = None, False, None
            self._asking.pop(index, None)
            self._held -= {index}
            self._n_live -= 1
        self._changed.notify_all()

    def _dismiss(self, client: DialledClient, reason: RollcastError | Farewell) -> None:
        self._free(client)
        client.end(reason)

    def _look_after(self, now: float) -> None:
        """Ends the clients that have not sent a turn in time, and names those that are slow while others act."""
        slow_s = min(_SLOW_S, self._stall_s / 4)
        for place in self._places:
            client = place.client
            if client is None or place.free_at is None:
                continue
            if now - place.free_at > self._stall_s:
                error = NotReadyError(
                    f"client {client.name!r}, environment {place.environment}: no turn has come within "
                    f"{self._stall_s:g} s after its actions; expected one; mend the environment, or raise "
                    "--step-timeout-s of the actor; then dial in again"
                )
                _log.warning("gave up its places: %s", error)
                self._dismiss(client, error)
            elif self._quiet_since - place.free_at > slow_s and client not in self._slow:
                self._slow.add(client)
                _log.warning(
                    "client %r is slow: its environment %d has sent no turn for %.0f s, while others act; its rollouts "
                    "have fewer steps",
                    client.name,
                    place.environment,
                    now - place.free_at,
                )

    def _report(self) -> None:
        """Says every 10 s who is waited for."""
        now = time.monotonic()
        if now < self._report_at:
            return
        self._report_at = now + _REPORT_EVERY_S
        waited_s = now - self._quiet_since
        if not self._places_of:
            _log.info("waiting for environments to dial in at %s, %.0f s so far", self._address, waited_s)
            return
        late = {place.client.name for place in self._places if place.client is not None and place.free_at is not None}
        if late:
            _log.info("waiting for turns of %s, %.0f s so far", quoted_names(sorted(late)), waited_s)

    def _oldest(self) -> float | None:
        """Returns the time of the oldest request that is not held."""
        return next((asked_at for index, asked_at in self._asking.items() if index not in self._held), None)

    def _note_chooser(self, client: DialledClient, chosen_by: str) -> None:
        if chosen_by and chosen_by not in self._choosers and len(self._choosers) < _MAX_CHOOSERS:
            self._choosers.add(chosen_by)
            _log.info("client %r: %s chooses actions in place of the policy", client.name, chosen_by)

    def _structured(self, client: DialledClient, turn: DialledTurn) -> Turn:
        observations, rewards, ended, executed = {}, {}, {}, {}
        for key, agent, state, observation, reward, executed_action, chosen_by in turn.agents:
            actor = ActorId(key, agent)
            rewards[actor] = reward
            if executed_action is not None or chosen_by:
                executed[actor] = Executed(executed_action, chosen_by)
                self._note_chooser(client, chosen_by)
            if state is AgentState.RUNNING:
                mask = self._masks[key]
                if mask is not None and any(mask.allows_no_action(observation)):
                    raise InvalidTurnError(
                        f"client {client.name!r}, environment {turn.environment}, agent {agent} of substep {key!r}: "
                        f"its {ACTION_MASK!r} allows no action; expected at least one while it has to act; end its "
                        "episode, or allow an action that does nothing"
                    )
                observations[actor] = observation
            elif state is not AgentState.REWARDED:
                ended[actor] = Ended(observation=observation, truncated=state is AgentState.INTERRUPTED)
        return Turn(observations=observations, rewards=rewards, ended=ended, events=turn.events, executed=executed)
