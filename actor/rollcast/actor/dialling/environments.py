"""Holds the places of environments that dial in: takes turns from the server, and returns the policy's actions."""

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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

# Seconds between two lines of the log about the clients that the actor waits for.
_REPORT_EVERY_S: Final = 10.0
# A client counts as slow after this many seconds for a turn while others act, or a quarter of its time limit.
_SLOW_S: Final = 10.0
# The largest number of names of other players in the log.
_MAX_CHOOSERS: Final = 16
# The server's thread runs passes up to this long, in seconds. It reads and writes nothing meanwhile.
_SHORT_PASS_S: Final = 0.001


class PlaceNews(NamedTuple):
    """The events at one place since the previous news.

    The events happened in this order: the last turns, the client's departure, the turns.

    Attributes:
        place: The index of the place.
        has_left: Whether the previous environment has left, during or after an episode. Its last actions have no
            results.
        turns: The turns of the present environment: all of one episode, or its end and the first turn of the next
            episode.
        last_turns: The end of an episode, which the previous environment sent before it left.
    """

    place: int
    has_left: bool
    turns: tuple[Turn, ...]
    last_turns: tuple[Turn, ...] = ()


class _Place:
    """A place for an environment. Guarded by the lock of `DialledEnvironments`.

    Attributes:
        client: The client whose environment has this place; None: free.
        environment: The environment's number at its client.
        turns: The turns that the actor has not taken yet; at most two.
        has_left: Whether an environment whose turns were taken has left.
        last_turns: The end of that environment's episode, if it arrived and the actor has not taken it yet.
        is_known: Whether a turn of the present environment was taken.
        n_taken: The number of environments that have had this place.
        free_at: The time since which its client has to send a turn; None: no turn is due.
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
    """A client that waits for places."""

    client: DialledClient
    n_envs: int


class _Deputy:
    """The means of the server's thread to answer batches while the acting thread waits. Guarded by the same lock.

    Attributes:
        rule: Decides when a batch closes.
        answer: Answers a batch; see `DialledEnvironments.wait`.
        forward_s: The seconds that the last forward pass took.
        is_busy: Whether the server's thread is in `answer`, which may deliver turns.
        error: The exception of `answer`.
    """

    __slots__ = ("answer", "error", "forward_s", "is_busy", "rule")

    def __init__(self, rule: BatchRule, answer: Callable[[], float | None], forward_s: float) -> None:
        self.rule = rule
        self.answer = answer
        self.forward_s = forward_s
        self.is_busy = False
        self.error: Exception | None = None


class DialledEnvironments:
    """The places of environments that dial in: a sink for the server, a vector of environments for the actor.

    Each environment of a client takes a free place, in order of arrival, and keeps it until its client leaves. The
    server's thread calls `open`, `take` and `leave`. The acting thread waits for the first client's `spaces`, and
    assigns the places with `agree` and `begin`. Then it repeats `wait` for a batch, `news`, and `act`. While it waits,
    the server's thread may answer batches whose passes are short, because two threads that take turns for each batch
    are slower than one.

        environments = DialledEnvironments(address="0.0.0.0:50052")
        with EnvironmentServer(address, environments):
            spaces = environments.wait_for_spaces(is_active)
            environments.agree(n_envs)
            environments.begin(seeds)         # one for each place
            while environments.wait(BatchRule(), is_active=is_active):
                for news in environments.news():
                    ...
                environments.act({place: [action, ...]}, policy_version=3)

    Invariant: actions go to the environment whose turn was taken. If another environment now has its place, the actions
    are dropped. The places of a client that leaves or stalls are free at once, so no client delays another.

    Args:
        address: The address that clients dial, for the log.
        spaces: The spaces that every client must have; None: the spaces of the first client.
        stall_s: Seconds that a client may take to send a turn after its actions. Later, its places are free.
        batch_size: The largest number of environments that act together; None: no limit.

    Attributes:
        batch_size: The largest number of environments that act together; None: no limit.
        n_batches: The number of batches of actions sent so far.
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
        # Places with news, in the order of the events.
        self._heard: dict[int, None] = {}
        # Places that wait for actions, with the time since which they do; the oldest first.
        self._asking: dict[int, float] = {}
        self._n_live = 0
        # The number of requests that fill a batch.
        self._enough = math.inf
        self._masks: dict[str, ActionMask | None] = {}
        # Clients that the log has named as slow, each once.
        self._slow: set[DialledClient] = set()
        self._look_at = -math.inf
        # Makes the server's thread call `look` at a time; None: no server. And the time of the next such call.
        self._look_later: Callable[[float], None] | None = None
        self._next_look = math.inf
        # True: no request has arrived since the last look.
        self._is_quiet = True
        # Answers batches while the acting thread waits; None: the acting thread answers.
        self._deputy: _Deputy | None = None
        # Players that have chosen actions in place of the policy, and that the log has named.
        self._choosers: set[str] = set()
        # The time of the last batch.
        self._quiet_since = time.monotonic()
        # The time since which the actor waits, without the time between waits, in which the learner may be waited for;
        # the time of the next line about it; and the end of the last wait.
        self._idle_since = self._paused_at = self._quiet_since
        self._report_at = self._quiet_since + _REPORT_EVERY_S

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces of each environment.

        Raises:
            NotReadyError: No client has dialled in yet.
        """
        with self._changed:
            if self._spaces is None:
                raise NotReadyError("no client has dialled in yet; expected a client with its spaces; wait for one")
            return self._spaces

    @property
    def num_envs(self) -> int:
        """The number of places."""
        with self._changed:
            return self._n_envs

    @property
    def n_live(self) -> int:
        """The number of places that environments occupy."""
        with self._changed:
            return self._n_live

    @property
    def n_clients(self) -> int:
        """The number of clients that play or wait for places."""
        with self._changed:
            return len(self._places_of)

    # The server's side.

    def attach(self, look_later: Callable[[float], None]) -> None:
        """Takes the means to call `look`; see `EnvironmentSink.attach`."""
        with self._changed:
            self._look_later = look_later

    def look(self) -> None:
        """Answers a batch that has become due; see `EnvironmentSink.look`."""
        with self._changed:
            self._next_look = math.inf
            if self._deputy is None:
                return
            is_quiet, self._is_quiet = self._is_quiet, True
            rule = self._deputy.rule
            is_crowd = not is_quiet and time.monotonic() < rule.crowd_deadline(self._oldest())
            if is_crowd and not self._is_full(rule):
                self._schedule_look(-math.inf)
            else:
                self._answer_if_due(self._deputy)

    def open(self, hello: Hello, client: DialledClient) -> None:
        """Takes a client; see `EnvironmentSink.open`.

        Raises:
            NameTakenError: A connected client has this name.
            InvalidSpaceError: The client's action mask has a wrong space.
            SpacesMismatchError: The client's spaces differ from the learner's, or from the first client's.
            ThrottledError: Too few places are free.
        """
        with self._changed:
            if isinstance(self._end, RollcastError):
                raise self._end
            if any(other.name == client.name for other in self._places_of):
                raise NameTakenError(
                    f"a client {client.name!r} plays here already; expected another name; choose another, or omit "
                    "the name; if your own client lost its connection, try again later"
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
            InvalidTurnError: The action mask of a RUNNING agent allows no action.
        """
        now = time.monotonic()
        with self._changed:
            places = self._places_of.get(client)
            if not places:  # it was ended: its last turns do not count
                return
            for turn in turns:
                index = places[turn.environment]
                place, structured = self._places[index], self._structured(client, turn)
                place.turns.append(structured)
                place.free_at = now
                if structured.observations:
                    self._asking[index] = now
                    place.free_at = None
                self._heard[index] = None
            if self._deputy is not None:
                self._is_quiet = False
                if self._next_look == math.inf or self._is_full(self._deputy.rule):
                    self._answer_if_due(self._deputy)
                return
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
        """Waits for the first client. Returns the spaces, or None if `is_active` returns False.

        Args:
            is_active: Called at least every second.
        """
        with self._changed, self._waiting():
            while self._spaces is None:
                if not is_active():
                    return None
                self._report()
                self._changed.wait(LOOK_S)
            return self._spaces

    def wait_for_clients(self, is_active: Callable[[], bool]) -> bool:
        """Waits for a client. Returns False if `is_active` returns False.

        Args:
            is_active: Called at least every second.
        """
        with self._changed, self._waiting():
            while not self._places_of:
                if not is_active():
                    return False
                self._report()
                self._changed.wait(LOOK_S)
            return True

    def agree(self, n_envs: int) -> None:
        """Sets the number of places, which `begin` assigns. Clients of the previous run must dial in again."""
        with self._changed:
            for client in [client for client, places in self._places_of.items() if places]:
                self._dismiss(client, Farewell(reason="another run begins: dial in again", training_ended=False))
            self._n_envs, self._places = n_envs, []

    def begin(self, seeds: Sequence[int]) -> None:
        """Assigns the places to clients that have dialled in, and to later clients.

        Args:
            seeds: A seed for each place. Later environments in the place get seeds derived from this seed.
        """
        with self._changed:
            assert len(seeds) == self._n_envs  # as agreed
            self._seeds = tuple(seeds)
            self._places = [_Place() for _ in seeds]
            self._heard, self._held, self._asking, self._n_live = {}, frozenset(), {}, 0
            self._quiet_since = self._paused_at = time.monotonic()
            self._is_idle_from(self._quiet_since)
            arrivals, self._arrivals = self._arrivals, []
            for arrival in arrivals:
                try:
                    self._seat(arrival.client, arrival.n_envs)
                except ThrottledError as error:
                    self._dismiss(arrival.client, error)

    def hold(self, places: Collection[int]) -> None:
        """Sets the places whose requests wait for later actions. No batch counts these requests."""
        with self._changed:
            self._held = frozenset(self._asking.keys() & set(places))

    def wait(
        self,
        rule: BatchRule,
        *,
        forward_s: float = 0.0,
        until: float = math.inf,
        is_active: Callable[[], bool] = lambda: True,
        answer: Callable[[], float | None] | None = None,
    ) -> bool:
        """Waits until a batch closes.

        If the last pass was short, `answer` runs in the server's thread for each batch that closes, in place of the
        caller, who goes on waiting. `answer` may use everything that the caller uses between two waits.

        Args:
            rule: Decides when a batch closes.
            forward_s: The seconds that the last forward pass took; 0: no pass yet.
            until: The monotonic time at which to return in any case.
            is_active: Called at least every second. The wait ends when it returns False.
            answer: Answers a batch as the caller would, and returns the seconds of the pass; None: the caller must
                decide.

        Returns:
            True if a batch closes, and the caller must answer it. False at `until`, when a client has left, if
            `is_active` returned False, or if `answer` returned None.

        Raises:
            Exception: The exception that `answer` raised.
        """
        with self._changed, self._waiting():
            self._enough = rule.max_size or math.inf
            while True:
                now = time.monotonic()
                # Check this even if there is always a batch, because few clients may keep the actor busy.
                if now >= self._look_at:
                    self._look_at = now + LOOK_S
                    self._look_after(now)
                closes_at = self._closes_at(rule, forward_s)
                if closes_at <= now:
                    self._note_batch(now)
                    return True
                has_lost = any(self._places[index].has_left for index in self._heard)
                if has_lost or now >= until or not is_active():
                    return False
                self._report()
                if answer is None or not 0 < forward_s <= _SHORT_PASS_S or self._look_later is None:
                    self._changed.wait(max(0.0, min(closes_at - now, until - now, LOOK_S)))
                    continue
                deputy = self._deputy = _Deputy(rule, answer, forward_s)
                self._schedule_look(closes_at)
                self._changed.wait(max(0.0, min(until - now, LOOK_S)))
                has_returned, self._deputy, forward_s = self._deputy is None, None, deputy.forward_s
                if deputy.error is not None:
                    raise deputy.error
                if has_returned:
                    return False

    def news(self) -> list[PlaceNews]:
        """Returns the events since the last call, one item for each place, in the order in which they began."""
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
        """Sends actions to places whose turns were taken.

        Args:
            actions: By place, one action for each agent that was RUNNING in the last turn, in the turn's order.
            policy_version: The version of the policy that chose the actions; -1: no policy.
            progress: The progress of training in [0, 1].
        """
        by_client: dict[DialledClient, list[EnvironmentActions]] = {}
        now = time.monotonic()
        with self._changed:
            for index, chosen in actions.items():
                place = self._places[index]
                # Not taken yet: the turn of another environment, or no turn.
                if place.client is None or index not in self._asking or place.turns or place.has_left:
                    continue
                del self._asking[index]
                place.free_at = now
                by_client.setdefault(place.client, []).append(EnvironmentActions(place.environment, chosen))
            self.n_batches += bool(by_client)
        for client, answers in by_client.items():
            client.answer(answers, policy_version=policy_version, progress=progress)

    def set_progress(self, progress: float) -> None:
        """Does nothing, because clients receive the progress with their actions."""

    def refuse(self, error: RollcastError) -> None:
        """Ends all clients with an error. Clients with other spaces may dial in afterwards.

        Args:
            error: The error that the clients receive.
        """
        with self._changed:
            for client in list(self._places_of):
                self._dismiss(client, error)
            self._n_envs, self._places = 0, []
            self._spaces, self._spaces_of, self._masks = None, "", {}

    def end(self, reason: RollcastError | Farewell) -> None:
        """Ends all clients, and refuses later clients. Only the first call's reason applies.

        Args:
            reason: The reason that the clients receive.
        """
        with self._changed:
            self._end = self._end or reason
            for client in list(self._places_of):
                self._dismiss(client, reason)

    def close(self) -> None:
        """Ends all clients, which may dial in again. Idempotent."""
        self.end(Farewell(reason="the actor stops", training_ended=False))

    # Called with the lock held.

    def _seat(self, client: DialledClient, n_envs: int) -> None:
        free = [index for index, place in enumerate(self._places) if place.client is None][:n_envs]
        if len(free) < n_envs:
            raise ThrottledError(
                f"client {client.name!r} has {n_envs} environments, and {len(free)} of the actor's {len(self._places)} "
                "places are free; expected enough; raise --envs-per-actor of the actor, start another actor, or "
                "try again later"
            )
        self._places_of[client] = tuple(free)
        now = time.monotonic()
        seeds = []
        for environment, index in enumerate(free):
            place = self._places[index]
            place.client, place.environment, place.free_at = client, environment, now
            # A game that dials in for each match must not get the same seed for all matches.
            seeds.append(derive_seed(self._seeds[index], place.n_taken) if place.n_taken else self._seeds[index])
            place.n_taken += 1
        self._n_live += n_envs
        client.welcome(seeds)

    def _free(self, client: DialledClient) -> None:
        """Frees the places of a client; does nothing the second time."""
        self._arrivals = [arrival for arrival in self._arrivals if arrival.client is not client]
        self._slow.discard(client)
        places = self._places_of.pop(client, None)
        if places is None:
            return
        for index in places:
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
        if not self._places_of:
            self._is_idle_from(time.monotonic())
        self._changed.notify_all()

    def _dismiss(self, client: DialledClient, reason: RollcastError | Farewell) -> None:
        self._free(client)
        client.end(reason)

    def _look_after(self, now: float) -> None:
        """Ends the clients that have not sent a turn in time, and logs those that are slow while others act."""
        slow_s = min(_SLOW_S, self._stall_s / 4)
        for place in self._places:
            client = place.client
            if client is None or place.free_at is None:
                continue
            if now - place.free_at > self._stall_s:
                error = NotReadyError(
                    f"client {client.name!r}, environment {place.environment}: no turn arrived within "
                    f"{self._stall_s:g} s after its actions; expected one; correct the environment, or raise "
                    "--step-timeout-s of the actor; then dial in again"
                )
                _log.warning("freed the places of a client: %s", error)
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

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Counts the time in the body as a wait for clients, and leaves out the time since the last such wait."""
        now = time.monotonic()
        away_s = now - self._paused_at
        # Since the last wait, all clients may have left.
        self._idle_since = min(now, self._idle_since + away_s)
        self._report_at = min(now + _REPORT_EVERY_S, self._report_at + away_s)
        try:
            yield
        finally:
            self._paused_at = time.monotonic()

    def _is_idle_from(self, now: float) -> None:
        self._idle_since, self._report_at = now, now + _REPORT_EVERY_S

    def _report(self) -> None:
        """Logs every 10 s which clients the actor waits for."""
        now = time.monotonic()
        if now < self._report_at:
            return
        self._report_at = now + _REPORT_EVERY_S
        waited_s = now - self._idle_since
        if not self._places_of:
            _log.info("waiting for environments to dial in at %s, %.0f s so far", self._address, waited_s)
            return
        late = {place.client.name for place in self._places if place.client is not None and place.free_at is not None}
        if late:
            _log.info("waiting for turns of %s, %.0f s so far", quoted_names(sorted(late)), waited_s)

    def _answer_if_due(self, deputy: _Deputy) -> None:
        """Answers a batch in the server's thread if one closes, and schedules the next look."""
        if deputy.is_busy:
            return
        closes_at = self._closes_at(deputy.rule, deputy.forward_s)
        if closes_at <= (now := time.monotonic()):
            self._note_batch(now)
            forward_s, deputy.is_busy = None, True
            try:
                forward_s = deputy.answer()
            except Exception as error:  # noqa: BLE001 - the acting thread raises it
                deputy.error = error
            deputy.is_busy = False
            if forward_s is None or forward_s > _SHORT_PASS_S:
                self._deputy = None
                self._changed.notify_all()
                return
            deputy.forward_s = forward_s
            closes_at = self._closes_at(deputy.rule, forward_s)
        self._schedule_look(closes_at)

    def _schedule_look(self, at: float) -> None:
        if at < self._next_look and self._look_later is not None:
            self._next_look = at
            self._look_later(at)

    def _closes_at(self, rule: BatchRule, forward_s: float) -> float:
        """Returns the time at which a batch closes if nothing changes. Minus infinity means now."""
        return -math.inf if self._is_full(rule) else rule.deadline(self._oldest(), forward_s)

    def _is_full(self, rule: BatchRule) -> bool:
        return rule.is_full(len(self._asking) - len(self._held), self._n_live - len(self._held))

    def _note_batch(self, now: float) -> None:
        self._quiet_since = now
        self._is_idle_from(now)

    def _oldest(self) -> float | None:
        """Returns the time of the oldest request, without those of places in `hold`."""
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
