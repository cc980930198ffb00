"""Describes the state of a run in one sentence: which part waits for which, what to do, and problems of training."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rollcast.services.joining.activity import ActingState
from rollcast.services.process.printable import printable
from rollcast.services.status.numbers import clock, count, decimal, percent, period, rate
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
from rollcast.tools.watching import states
from rollcast.tools.watching.ranking import SILENT_S, gone
from rollcast.tools.watching.relays import RelayActors
from rollcast.tools.watching.run_view import RunView

# The fraction of the last minute from which a side counts as waiting.
_WAITS: Final = 0.25
# The fraction from which a state of the actors counts as the cause.
_CAUSE: Final = 0.3
# The periods of the rate, in seconds: the first one with an update is used.
_RATES_S: Final = (60.0, 300.0, 3600.0)
# The slowest of at least this many actors is named if the others' median is at least this many times its speed.
_MANY: Final = 3
_TIMES_SLOWER: Final = 2.0
# The trainer counts as waiting if its current wait takes this many seconds, independently of the last minute.
_LONG_WAIT_S: Final = 5.0
# The most characters of a name, of a text from another machine, and of a sentence.
_NAME_LENGTH: Final = 40
_TEXT_LENGTH: Final = 160
_SENTENCE_LENGTH: Final = 500

_START_AN_ACTOR: Final = "start one with `rollcast actor --learner-address HOST:PORT`"
_IN_TURNS: Final = (
    "both wait in turns, as on-policy algorithms do; others need more cores or a larger --queue-out-of-sync-factor"
)
_MORE_ACTORS: Final = "add actors, or environments for each actor"


def headline(view: RunView) -> str:
    """Returns one sentence: which part waits for which, and what to do; "No part waits: ..." if none waits.

    Texts of actors are escaped and shortened. The sentence contains no line break and no control character.
    """
    status = view.status
    if status is None or view.now_s is None:
        return "The learner has sent no status yet."
    if status.phase is Phase.TRAINING:
        return _training(view, status)
    if status.phase is Phase.STARTING:
        return f"Training has not started: the learner waits for {_cut(status.waiting_for) or 'its start to finish'}."
    if status.phase is Phase.PAUSED:
        since = f", for {period(status.waiting_s)}" if status.waiting_s else ""
        return f"Training is paused by an operator{since}: actors fill the queue and wait until it is resumed."
    if status.phase is Phase.STOPPING:
        return "Training is stopping: the learner saves its policy and closes."
    mean_return = "" if status.mean_return is None else f", mean return {decimal(status.mean_return)}"
    return f"Training has ended after {clock(view.clock_s)}: {count(status.env_steps)} steps{mean_return}."


def learning(view: RunView) -> list[str]:
    """Returns the problems of training, a sentence each, the worst first; escaped."""
    return [] if view.status is None else [_shortened(one.sentence, _SENTENCE_LENGTH) for one in view.status.findings]


def waiting_fraction(view: RunView) -> float | None:
    """Returns the fraction of the last minute in which the trainer waited for rollouts; None if it is not known."""
    points = view.last_minute()
    total_s = sum(point.interval_s for point in points)
    if total_s > 0:
        return sum(point.waiting_fraction * point.interval_s for point in points) / total_s
    return None if view.status is None or not view.status.updates else view.status.waiting_fraction


class RecentRate(NamedTuple):
    """The recent number of environment steps used for training per second.

    Attributes:
        per_second: The mean; None if it is not known.
        over_s: The period of the mean, in seconds.
    """

    per_second: float | None
    over_s: float


def recent_rate(view: RunView) -> RecentRate:
    """Returns the rate of the last minute, or of a longer period if that minute had no update."""
    found = RecentRate(None, _RATES_S[0])
    for over_s in _RATES_S:
        points = view.points(over_s) if over_s > _RATES_S[0] else view.last_minute()
        if points:
            steps = sum(point.env_steps_per_second * point.interval_s for point in points)
            found = RecentRate(steps / sum(point.interval_s for point in points), over_s)
        if found.per_second:
            return found
    return found


def state_text(actor: ActorInfo, *, is_short: bool = False) -> str:
    """Returns the acting state of an actor, or the state of its connection: "waiting for credit", "lost".

    Args:
        actor: The actor.
        is_short: True: use at most 14 characters.
    """
    if actor.state is not ActorState.STREAMING:
        return actor.state.name.lower()
    if actor.acting_state is None:
        return "connected"
    look = states.ACTING[actor.acting_state]
    return look.short if is_short else look.name


def relays_of(actor: ActorInfo) -> str:
    """Returns the names of an actor's relays, the nearest first: "rack-1, site-a"; empty if it has none."""
    return printable(", ".join(actor.via))


def relay_name(relay: RelayActors) -> str:
    """Returns a relay's name, escaped; "(directly)" for actors without a relay."""
    return printable(relay.relay_id) or "(directly)"


def relay_text(relay: RelayActors) -> str:
    """Returns the state of a relay's actors if none of them works, in at most 18 characters; empty if some do."""
    if relay.is_gone:
        return "all gone"
    if relay.has_no_worker:
        return "all silent or gone" if relay.n_gone else "all silent"
    return ""


def _training(view: RunView, status: LearnerStatus) -> str:
    streaming = [actor for actor in view.actors if actor.state is ActorState.STREAMING]
    fraction = waiting_fraction(view) or 0.0
    waits_now = bool(status.waiting_for) and status.waiting_s >= _LONG_WAIT_S
    missing = _missing(view)
    if waits_now and not status.waiting_for.startswith("rollouts from"):
        # The learner's own text contains the advice, such as to start an actor.
        return f"The trainer has waited {period(status.waiting_s)} for {_cut(status.waiting_for)}."
    if waits_now or fraction >= _WAITS:
        how_long = f" for {period(status.waiting_s)}" if waits_now else f" {percent(fraction)} of the time"
        return f"The trainer waits{how_long} for rollouts: {missing or _why_actors_are_slow(view, streaming)}."
    credit = _mean_share(view, streaming, ActingState.WAITING_FOR_CREDIT)
    if credit is not None and credit >= _WAITS:
        also = f"; and {missing}" if missing else ""
        return f"The actors wait for the trainer {percent(credit)} of the time: {_why_trainer_is_slow(status)}{also}."
    if missing:
        return f"The trainer does not wait, but {missing}."
    return f"No part waits: {_work(view, streaming)}the trainer waits {percent(fraction)} of the time."


def _missing(view: RunView) -> str:
    """Returns a clause about the actors that are gone or silent; empty if there are none."""
    n_expected = sum(actor.state is not ActorState.LEFT for actor in view.actors)
    clauses = []
    # A single actor proves nothing about its relay.
    idle = [relay for relay in view.relays() if relay.relay_id and relay.has_no_worker and relay.n_actors > 1]
    if silent_s := view.silences():
        worst = max((actor for actor in view.actors if actor.actor_id in silent_s), key=lambda a: silent_s[a.actor_id])
        doing = "" if worst.acting_state is None else f" ({states.ACTING[worst.acting_state].name})"
        how_many, how_long = _of(len(silent_s), n_expected, "silent"), period(silent_s[worst.actor_id])
        clauses.append(f"{how_many}, {_name(worst)} for {how_long}{doing}; {_why_silent(view, worst, idle)}")
    if found := gone(view.actors):
        # Names an actor that has given a reason.
        told = next((actor for actor in found if actor.last_error), found[0])
        why = f": {_cut(told.last_error)}" if told.last_error else ""
        clauses.append(
            f"{_of(len(found), n_expected, 'gone')}, {_behind(idle)}{_name(told)} ({told.state.name.lower()}) for "
            f"{period(told.idle_s)}{why}"
        )
    return "; ".join(clauses)


def _behind(idle: Sequence[RelayActors]) -> str:
    """Returns a clause about relays that have lost all actors: "all 250 of relay rack-1 among them, "; or nothing."""
    lost = [relay for relay in idle if relay.is_gone]
    if not lost:
        return ""
    # Of relays in a row, the largest is the one next to the learner.
    largest = max(lost, key=lambda relay: relay.n_actors)
    others = len(lost) - 1
    more = f" and of {others} other relay{'s' if others > 1 else ''}" if others else ""
    return f"all {largest.n_actors:,} of relay {_shortened(largest.relay_id, _NAME_LENGTH)}{more} among them, "


def _why_silent(view: RunView, actor: ActorInfo, idle: Sequence[RelayActors]) -> str:
    unheard_s = view.unheard_s(actor.actor_id)
    if unheard_s is None:
        return "its environment is slow or hangs, or its network is down"
    if unheard_s > SILENT_S:
        if through := [relay for relay in idle if relay.relay_id in actor.via]:
            largest = max(through, key=lambda relay: relay.n_actors)
            name = _shortened(largest.relay_id, _NAME_LENGTH)
            doing = relay_text(largest).removeprefix("all ")
            return f"all {largest.n_actors:,} of relay {name} are {doing}; the relay hangs, or its network is down"
        return "its process or machine hangs, or its network is down"
    return "its environment is slow or hangs"


def _why_actors_are_slow(view: RunView, streaming: Sequence[ActorInfo]) -> str:
    if not streaming:
        return f"no actor {'is connected' if view.actors else 'has joined'}; {_START_AN_ACTOR}"
    shares = [_mean_share(view, streaming, state) for state in ActingState]
    if shares[0] is None:
        return f"{_they(len(streaming), 'deliver')} fewer than it could use{_slow_one(streaming)}; {_MORE_ACTORS}"
    doing = _main_hindrance({state: share or 0.0 for state, share in zip(ActingState, shares, strict=True)})
    return f"{_they(len(streaming), 'spend')} {doing}{_slow_one(streaming)}"


def _slow_one(streaming: Sequence[ActorInfo]) -> str:
    """Returns a clause that names the slowest actor if it is far behind, after a semicolon; or nothing."""
    if len(streaming) < _MANY:
        return ""
    slowest = min(streaming, key=lambda actor: actor.env_steps_per_second)
    others = float(np.median([actor.env_steps_per_second for actor in streaming if actor is not slowest]))
    if others <= 0 or others < _TIMES_SLOWER * slowest.env_steps_per_second:
        return ""
    return (
        f"; {_name(slowest)} is the slowest with {rate(slowest.env_steps_per_second)}; the others' median is "
        f"{rate(others)}"
    )


def _main_hindrance(shares: Mapping[ActingState, float]) -> str:
    """Returns the state in which actors spend most time, with advice: "90 % of the time acting; add actors"."""
    policy = shares[ActingState.WAITING_FOR_POLICY] + shares[ActingState.LOADING_POLICY]
    causes = (
        (shares[ActingState.SENDING], "sending; the network is slow, or rollouts are large"),
        (policy, "waiting for policies or loading them; the network is slow, or policies are large"),
        (shares[ActingState.CONNECTING], "connecting; read their logs"),
    )
    for share, what in causes:
        if share >= _CAUSE:
            return f"{percent(share)} of the time {what}"
    credit, acting = shares[ActingState.WAITING_FOR_CREDIT], shares[ActingState.ACTING]
    if credit > acting:
        return f"{percent(credit)} of the time waiting for credit; {_IN_TURNS}"
    return f"{percent(acting)} of the time acting; {_MORE_ACTORS}"


def _why_trainer_is_slow(status: LearnerStatus) -> str:
    if status.queue_capacity and status.queue_size >= status.queue_capacity:
        full = f"the queue is full ({count(status.queue_size)} trajectories)"
    else:
        full = "it takes rollouts more slowly than actors send them"
    advice = "use a GPU or larger batches, or fewer actors"
    if status.replay is not None:
        advice += "; or change the rate limiter (--replay.samples-per-insert)"
    return f"{full}; {advice}"


def _work(view: RunView, streaming: Sequence[ActorInfo]) -> str:
    acting = _mean_share(view, streaming, ActingState.ACTING)
    if not streaming:
        return ""
    if acting is None:
        return f"{_actors(len(streaming))} {'is' if len(streaming) == 1 else 'are'} connected, "
    return f"{_they(len(streaming), 'act')} {percent(acting)} and "


def _mean_share(view: RunView, actors: Sequence[ActorInfo], state: ActingState) -> float | None:
    """Returns the mean share of a state over actors in the last minute; None if it is not known for any."""
    shares = [shares for actor in actors if (shares := view.shares(actor.actor_id)) is not None]
    return float(np.mean(shares, axis=0)[state.value - 1]) if shares else None


def _of(number: int, total: int, what: str) -> str:
    return f"{number} of {_actors(total)} {'is' if number == 1 else 'are'} {what}"


def _actors(number: int) -> str:
    return "1 actor" if number == 1 else f"{number:,} actors"


def _they(number: int, verb: str) -> str:
    return f"{_actors(number)} {verb}{'s' if number == 1 else ''}"


def _name(actor: ActorInfo) -> str:
    return _shortened(actor.actor_id, _NAME_LENGTH)


def _cut(text: str) -> str:
    return _shortened(text.strip().rstrip("."), _TEXT_LENGTH)


def _shortened(text: str, length: int) -> str:
    # Escaping makes text longer. Long text is also cut before it, so that escaping is fast.
    escaped = printable(text[: 2 * length])
    return escaped if len(escaped) <= length else escaped[: length - 3] + "..."
