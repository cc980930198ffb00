"""Formats a run for the page: its title, the rows of its lanes and relays, and its events."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from rollcast.services.address import shown_peer
from rollcast.services.history.history import HistoryEvent
from rollcast.services.process.printable import printable, printable_lines
from rollcast.services.status.numbers import (
    UNKNOWN,
    clock,
    count,
    period,
    rate,
    short_count,
    wall_clock,
)
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
from rollcast.tools.watching import wording
from rollcast.tools.watching.run_view import RunView
from rollcast.tools.watching.states import ACTING

# The columns of the lanes, besides name and lane, with their meanings.
COLUMNS: Final = (
    ("policy", "version of the policy that the actor uses; of the learner, the newest one"),
    ("steps/s", "environment steps a second"),
    ("restarts", "times that another process has taken over the actor's name"),
    ("steps", "environment steps since the run started"),
)

# The columns of the table of relays, besides the name, with their meanings.
RELAY_COLUMNS: Final = (
    ("actors", "actors behind the relay, without those that have left"),
    ("silent", "actors that are silent"),
    ("gone", "actors that have failed, were refused, or are lost"),
    ("steps/s", "environment steps per second of all connected actors"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRow:
    """A row of the table of relays.

    Attributes:
        name: The relay's name.
        cells: The values of `RELAY_COLUMNS`.
        doing: The state of its actors if none of them works; empty if some do.
        is_bad: True: all its actors are gone.
    """

    name: str
    cells: tuple[str, ...]
    doing: str
    is_bad: bool


def title_of(view: RunView) -> str:
    """Returns the environment, the algorithm and the folder of a run in a line; empty before the first update."""
    run = view.run
    if run is None:
        return ""
    parts = (run.env_id or "actors' own environments", run.algorithm, PurePath(run.run_dir).name if run.run_dir else "")
    return " · ".join(printable(part) for part in parts if part)


def subtitle_of(view: RunView) -> str:
    """Returns the time since the start of the run, and its seed."""
    if view.run is None or view.status is None:
        return ""
    seed = "" if view.run.seed is None else f"seed {view.run.seed}"
    return "  ".join(part for part in (clock(view.clock_s), seed) if part)


def phase_of(view: RunView, problem: str | None) -> str:
    """Returns the phase in capitals: "TRAINING"; "NO ANSWER" if the learner does not answer."""
    ended = view.status is not None and view.status.phase is Phase.FINISHED
    if view.status is None or (problem is not None and not ended):
        return "NO ANSWER"
    return view.status.phase.name


def learner_row(view: RunView) -> dict[str, Any]:
    """Returns the learner's row of the lanes, as `lanes.js` draws it."""
    status = view.status
    if status is None:
        return _row("", name="learner", letter="", doing=UNKNOWN, cells=[UNKNOWN] * len(COLUMNS))
    cells = [
        f"v{count(status.policy_version)}",
        short_count(status.env_steps_per_second),
        "",
        short_count(status.env_steps),
    ]
    return _row("", name="learner", letter="", doing=status.phase.name.lower(), cells=cells)


def actor_row(actor: ActorInfo) -> dict[str, Any]:
    """Returns an actor's row of the lanes, as `lanes.js` draws it."""
    streaming = actor.state is ActorState.STREAMING
    letter = ACTING[actor.acting_state].letter if streaming and actor.acting_state is not None else ""
    cells = [
        f"v{count(_applied(actor))}" if _applied(actor) else UNKNOWN,
        short_count(actor.env_steps_per_second) if streaming else UNKNOWN,
        count(actor.incarnation - 1),
        short_count(actor.env_steps),
    ]
    doing = wording.state_text(actor)
    if actor.last_error:
        doing = f"{doing}: {printable(actor.last_error.splitlines()[0])}"
    return _row(actor.actor_id, name=printable(actor.actor_id), letter=letter or _mark(actor), doing=doing, cells=cells)


def _row(actor_id: str, *, name: str, letter: str, doing: str, cells: Sequence[str]) -> dict[str, Any]:
    says = ", ".join(f"{column} {cell or UNKNOWN}" for (column, _), cell in zip(COLUMNS, cells, strict=True))
    return {
        "id": actor_id,
        "name": name,
        "letter": letter,
        "title": f"{name}: {doing}",
        "says": f"{name}: {doing}; {says}",
        "bad": letter == "!",
        "cells": list(cells),
    }


def relay_rows(view: RunView) -> list[RelayRow]:
    """Returns a row for each relay, the worst off first; empty in a run without relays."""
    return [
        RelayRow(
            name=wording.relay_name(relay),
            cells=(
                count(relay.n_actors),
                count(relay.n_silent),
                count(relay.n_gone),
                short_count(relay.env_steps_per_second),
            ),
            doing=wording.relay_text(relay),
            is_bad=relay.is_gone,
        )
        for relay in view.relays()
    ]


def _mark(actor: ActorInfo) -> str:
    """Returns the letter of an actor that does not stream: "!" if something is wrong."""
    return "!" if actor.state in (ActorState.LOST, ActorState.FAILED, ActorState.REFUSED) else ""


def _applied(actor: ActorInfo) -> int:
    """Returns the policy version that an actor reports to use; else the version of its last rollout."""
    return actor.applied_policy_version or actor.policy_version


def about_actor(actor: ActorInfo) -> tuple[tuple[str, str], ...]:
    """Returns all known facts about an actor, as names and texts."""
    answers = f"p50 {period(actor.answer_p50_s)}, p99 {period(actor.answer_p99_s)}" if actor.answer_p99_s else UNKNOWN
    return (
        ("state", wording.state_text(actor)),
        ("slot", f"{actor.slot}, process #{actor.incarnation}"),
        ("peer", printable(shown_peer(actor.peer)) or UNKNOWN),
        ("relays", wording.relays_of(actor) or "none"),
        ("environments", count(actor.n_envs)),
        ("policy it uses", f"v{count(_applied(actor))}"),
        ("policy of its last rollout", f"v{count(actor.policy_version)}"),
        ("env steps", f"{count(actor.env_steps)} ({rate(actor.env_steps_per_second)})"),
        ("rollouts", count(actor.rollouts)),
        ("processor", f"{actor.cpu_cores:.1f} cores" if actor.cpu_cores else UNKNOWN),
        ("memory", f"{actor.memory_bytes / 2**20:,.0f} MiB" if actor.memory_bytes else UNKNOWN),
        ("last rollout", f"{period(actor.idle_s)} ago"),
        ("answers to requests for actions", answers),
        ("rollcast", printable(actor.software_version) or UNKNOWN),
    )


def event_rows(view: RunView, events: Iterable[HistoryEvent]) -> list[dict[str, Any]]:
    """Returns events as `events.js` draws them, in the same order.

    Args:
        view: The view of their run.
        events: The events, with `time_s` in seconds since 1970.
    """
    return [
        {
            "key": f"{event.time_s:.6f} {index}",
            "at": clock(view.since_start(event.time_s)),
            "clock": wall_clock(event.time_s),
            "severity": event.severity.name.lower(),
            "who": printable(event.who) or "learner",
            "text": printable(event.text),
            "detail": printable_lines(event.detail),
        }
        for index, event in enumerate(events)
    ]


def throttled_rows(status: LearnerStatus) -> list[str]:
    """Returns a line for each client that met a limit in the last minute."""
    return [
        f"{printable(one.who)} met the limit {one.limit} {count(one.times)} times, last {period(one.idle_s)} ago"
        for one in status.throttled
    ]
