"""Draws a run for `rollcast top`, as lines that fit a terminal of any size."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from rollcast.services.history.history import EventSeverity, HistoryEvent, Shares
from rollcast.services.process.printable import printable
from rollcast.services.status.numbers import (
    UNKNOWN,
    clock,
    count,
    percent,
    period,
    short_count,
)
from rollcast.services.status.status import LearnerStatus, Phase
from rollcast.tools.top import columns as top_columns
from rollcast.tools.top.columns import Column
from rollcast.tools.top.relays import relay_lines
from rollcast.tools.watching import states
from rollcast.tools.watching.ranking import gone
from rollcast.tools.watching.rows import Row, rows
from rollcast.tools.watching.run_view import RunView
from rollcast.tools.watching.wording import headline, learning, recent_rate, relays_of, state_text

_PHASE_STYLES: Final = {
    Phase.STARTING: "yellow",
    Phase.TRAINING: "green",
    Phase.PAUSED: "yellow",
    Phase.STOPPING: "yellow",
    Phase.FINISHED: "bold green",
}
_SEVERITY_STYLES: Final = {EventSeverity.INFO: "", EventSeverity.WARNING: "yellow", EventSeverity.ERROR: "red"}
_FIELD_GAP: Final = "   "
# The rows that are shown, the most important first.
_LAG: Final = "policy lag"
_FIELDS: Final = (
    *("mean return", "evaluation", "env steps", "env steps/s", "updates", "trainer waits", "queue", "buffer"),
    *("dropped", _LAG, "publish lag", "data staleness"),
)
_BOLD: Final = ("mean return", "evaluation")
_WITH_BAR: Final = ("queue",)
# Rows that are shown with their notes.
_WITH_NOTE: Final = ("mean return", "evaluation", "env steps/s", "updates", "publish lag", "data staleness")
_BAR_WIDTH: Final = 8
# The number of lags, from 0, with their own bar; larger lags share one.
_SHOWN_LAGS: Final = 5
_MIN_LANE: Final = 8
_MAX_NAME: Final = 24
# The most lines of the headline, and of a problem.
_MAX_SENTENCE_LINES: Final = 3
# The most findings about training; `rollcast doctor` shows all of them.
_MAX_FINDINGS: Final = 2
# The most events if the height is unlimited.
_EVENTS: Final = 10
# Terminals of fewer lines have no legend, and no empty lines.
_HAS_LEGEND: Final = 20
_HAS_GAPS: Final = 30


# The most characters of an actor's relays, in terminals of at least `_HAS_WIDE_VIA` columns and in narrower ones.
_MAX_VIA: Final = 24
_NARROW_VIA: Final = 12
_HAS_WIDE_VIA: Final = 120

_STATE: Final = Column("state", 14, 50, "left")
_POLICY: Final = Column("policy", 7, 60)
_RATE: Final = Column("steps/s", 7, 70)
_RESTARTS: Final = Column("restarts", 8, 90)
_STEPS: Final = Column("steps", 6, 80)
_COLUMNS: Final = (_STATE, _POLICY, _RATE, _RESTARTS, _STEPS)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The widths of names and lanes, and the columns beside them; `via` is the column of actors' relays, if any."""

    name_width: int
    lane_width: int
    columns: tuple[Column, ...]
    via: Column | None


def frame(view: RunView, problem: str | None, *, width: int, height: int | None, span_s: float) -> list[Text]:
    """Draws a run.

    Args:
        view: The run.
        problem: The reason for missing updates; None: updates arrive.
        width: Columns of the terminal, at least 1.
        height: Lines of the terminal, at least 1; None: unlimited, with all actors.
        span_s: The seconds that lanes show.

    Returns:
        At most `height` lines, each of at most `width` columns. Text from other machines is escaped.
    """
    head = [_title(view), *_sentences(view, problem, width)]
    status = view.status
    if status is None:
        return _cropped(head, width, height)
    fields = _flow(_fields(view), width)
    legend = _flow(_legend(), width, " " * 2) if height is None or height >= _HAS_LEGEND else []
    gap = [Text()] if height is None or height >= _HAS_GAPS else []
    layout = _layout(view, width)
    lanes_head = _lanes(view, status, layout, span_s)
    relays = view.relays()
    rest = None
    if height is not None:
        rest = height - len(head) - len(lanes_head) - len(legend) - 3 * len(gap)
        # Actors and events get half of the rest.
        fields = fields[: max(rest // 2, 0)]
        rest = max(rest - len(fields), 0)
    # Half of the remaining lines, including the gap after the relays.
    drawn_relays = relay_lines(relays, n_lines=None if rest is None else (rest - len(gap)) // 2, width=width)
    if drawn_relays:
        drawn_relays += gap
    if rest is not None:
        rest -= len(drawn_relays)
    n_actors, n_events = _parts(rest, len(view.actors), len(view.events))
    lines = [
        *head,
        *gap,
        *fields,
        *gap,
        *drawn_relays,
        *lanes_head,
        *_actors(view, n_actors, layout, span_s),
        *gap,
        *(_event(view, event) for event in list(view.events)[len(view.events) - n_events :][::-1]),
        *legend,
    ]
    return _cropped(lines, width, height)


def _parts(rest: int | None, n_actors: int, n_events: int) -> tuple[int, int]:
    """Divides the remaining lines between actors and events. With many actors, events get a quarter."""
    if rest is None:
        return n_actors, min(n_events, _EVENTS)
    for_events = min(n_events, max(rest // 4, rest - n_actors))
    return rest - for_events, for_events


def _title(view: RunView) -> Text:
    title = Text("rollcast", "bold")
    run, status = view.run, view.status
    if run is not None:
        for word in (run.env_id, run.algorithm, run.run_dir):
            title.append(f"  {printable(word)}" if word else "", "")
    if status is not None:
        title.append(f"  {status.phase.name}", _PHASE_STYLES[status.phase])
        title.append(f"  {clock(view.clock_s)}", "")
    if run is not None and run.seed is not None:
        title.append(f"  seed {run.seed}", "")
    return title


def _sentences(view: RunView, problem: str | None, width: int) -> Iterator[Text]:
    if problem is not None:
        yield from _wrapped(Text(printable(f"No news: {problem}"), "bold red"), width)
    if problem is None or view.status is not None:
        told = headline(view)
        well = told.startswith("Nobody") or (view.status is not None and view.status.phase is Phase.FINISHED)
        yield from _wrapped(Text(told, "bold green" if well else "bold yellow"), width)
    for found in learning(view)[:_MAX_FINDINGS]:
        yield from _wrapped(Text(found, "yellow"), width)


def _wrapped(text: Text, width: int) -> list[Text]:
    lines: list[Text] = []
    line = Text(style=text.style)
    for word in text.plain.split():
        if line.plain and cell_len(line.plain) + 1 + cell_len(word) > width:
            lines.append(line)
            line = Text(style=text.style)
        line.append(f" {word}" if line.plain else word)
    lines.append(line)
    if len(lines) > _MAX_SENTENCE_LINES:
        lines = lines[:_MAX_SENTENCE_LINES]
        lines[-1].truncate(max(width - 4, 0))
        lines[-1].append(" ...")
    return lines


def _fields(view: RunView) -> Iterator[Text]:
    """Yields the figures, the most important first; policy lags have bars."""
    by_name = {row.name: row for row in rows(view)}
    for name in _FIELDS:
        if name == _LAG:
            yield _lag(view)
        elif name in by_name:
            yield _row_field(by_name[name])


def _row_field(row: Row) -> Text:
    bar = f" {_bar(row.share)}" if row.name in _WITH_BAR and row.share is not None else ""
    has_note = row.name in _WITH_NOTE or (row.name == "dropped" and row.is_notable)
    note = f" ({row.note})" if has_note and row.note else ""
    style = "yellow" if row.is_notable else "bold" if row.name in _BOLD else ""
    return _field(row.name, f"{row.text}{bar}{note}", style)


def _lag(view: RunView) -> Text:
    """Returns a line of bars: the share of trajectories by lag."""
    counts = view.delays.trajectories_by_lag
    total = sum(counts)
    limit = view.delays.max_policy_lag
    limited = "" if limit is None else f"  limit {limit}"
    if not total:
        return _field(_LAG, f"{UNKNOWN}{limited}")
    shown = [(str(lag), number) for lag, number in enumerate(counts[:_SHOWN_LAGS])]
    if more := sum(counts[_SHOWN_LAGS:]):
        shown.append((f">{_SHOWN_LAGS - 1}", more))
    bars = "  ".join(
        f"{lag}:{_bar(number / total, '')} {percent(number / total)}"
        for lag, number in shown
        if number >= 0.005 * total
    )
    return _field(_LAG, f"{bars}{limited}")


def _short_period(seconds: float) -> str:
    """Returns a duration in its largest unit: "3 h"."""
    return " ".join(period(seconds).split()[:2])


def _lanes(view: RunView, status: LearnerStatus, layout: _Layout, span_s: float) -> list[Text]:
    """Returns the heading of the lanes, and the learner's lane."""
    lane_width = layout.lane_width
    scale = f"last {period(span_s)}"
    # A scale, if there is room for one.
    if lane_width >= len(scale) + 6:
        scale = f"{scale} ".ljust(lane_width - len("now"), "-") + "now"
    values = {
        _STATE: status.phase.name.lower(),
        _POLICY: f"v{status.policy_version}",
        _RATE: short_count(recent_rate(view).per_second),
        _STEPS: short_count(status.env_steps),
    }
    return [
        _row(Text("lanes"), Text(scale), top_columns.titles(layout.columns), layout, "dim"),
        _row(Text("learner", "bold"), _lane("", view.lane("", span_s, lane_width), lane_width), values, layout),
    ]


def _actors(view: RunView, n_lines: int, layout: _Layout, span_s: float) -> Iterator[Text]:
    """Yields the rows of the worst-off actors, and a line with their number if not all are shown."""
    n_shown = len(view.actors) if len(view.actors) <= n_lines else max(n_lines - 1, 0)
    if not n_lines:
        return
    lane_width = layout.lane_width
    silent_s = view.silences()
    gone_ids = {actor.actor_id for actor in gone(view.actors)}
    for actor in view.ranked_actors()[:n_shown]:
        is_silent, is_gone = actor.actor_id in silent_s, actor.actor_id in gone_ids
        values = {
            _STATE: f"silent {_short_period(silent_s[actor.actor_id])}"
            if is_silent
            else state_text(actor, is_short=True),
            _POLICY: f"v{actor.applied_policy_version or actor.policy_version}",
            _RATE: short_count(actor.env_steps_per_second),
            _RESTARTS: count(max(actor.incarnation - 1, 0)),
            _STEPS: short_count(actor.env_steps),
        }
        if layout.via is not None:
            values[layout.via] = relays_of(actor)
        style = "red" if is_gone else "yellow" if is_silent else ""
        lane = _lane(actor.actor_id, view.lane(actor.actor_id, span_s, lane_width), lane_width)
        yield _row(Text(printable(actor.actor_id), style), lane, values, layout, style)
    if n_shown < len(view.actors):
        yield Text(f"{n_shown} of {len(view.actors):,} shown, the worst off first", "dim")


def _row(name: Text, lane: Text, values: dict[Column, str], layout: _Layout, style: str = "") -> Text:
    name.truncate(layout.name_width, overflow="ellipsis", pad=True)
    row = Text.assemble(name, " ", lane)
    top_columns.append(row, layout.columns, values, style)
    return row


def _layout(view: RunView, width: int) -> _Layout:
    via = _via_column(view, width)
    columns = top_columns.shown(_COLUMNS if via is None else (*_COLUMNS, via), width)
    free = width - top_columns.total_width(columns) - 1
    longest = max((cell_len(printable(actor.actor_id)) for actor in view.actors), default=0)
    name_width = max(min(longest, _MAX_NAME, free // 2, free - _MIN_LANE), min(len("learner"), free // 2), 1)
    return _Layout(name_width, max(free - name_width, 1), columns, via)


def _via_column(view: RunView, width: int) -> Column | None:
    """Returns the column of actors' relays; None if no actor has any."""
    longest = max((cell_len(relays_of(actor)) for actor in view.actors), default=0)
    if not longest:
        return None
    widest = _MAX_VIA if width >= _HAS_WIDE_VIA else _NARROW_VIA
    return Column("via", max(min(longest, widest), len("via")), _STEPS.from_width, "left")


def _lane(actor_id: str, shares: Shares, width: int) -> Text:
    lane = Text()
    looks = states.looks(actor_id)
    for state, cells in itertools.groupby(_shown_states(shares)[:width]):
        look = states.UNKNOWN if state is None else looks[state]
        lane.append(look.letter * len(list(cells)), f"{look.ink} on {look.colour}" if look.colour else "dim")
    return lane


def _shown_states(shares: Shares) -> list[int | None]:
    """Returns one state for each cell, so that states appear in proportion to their time; None: not known.

    A cell shows only a state that occurs in it. The rest of a state's share is carried to the next such cells.
    """
    shown: list[int | None] = []
    owed = [0.0] * shares.shape[1]
    # Lists, because numpy is slower for so few numbers.
    for cell in shares.tolist():
        owed = [before + share / 255.0 if share else 0.0 for before, share in zip(owed, cell, strict=True)]
        state = max((index for index, share in enumerate(cell) if share), key=owed.__getitem__, default=None)
        if state is not None:
            owed[state] -= 1.0
        shown.append(state)
    return shown


def _event(view: RunView, event: HistoryEvent) -> Text:
    who = f"{printable(event.who)} " if event.who else ""
    first, *more = event.text.splitlines() or [""]
    return Text.assemble(
        (f"{clock(view.since_start(event.time_s))}  ", "dim"),
        (f"{who}{printable(first)}{' ...' if more else ''}", _SEVERITY_STYLES[event.severity]),
    )


def _legend() -> Iterator[Text]:
    for look in (*states.ACTING.values(), *states.LEARNING.values(), states.UNKNOWN):
        style = f"{look.ink} on {look.colour}" if look.colour else "dim"
        yield Text.assemble((look.letter, style), (f" {look.name}", "dim"))
    yield Text("q quits", "dim")


def _field(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name} ", "dim"), (value, style))


def _bar(fraction: float, rest: str = ".") -> str:
    done = min(max(round(_BAR_WIDTH * fraction), 0), _BAR_WIDTH)
    return "#" * done + rest * (_BAR_WIDTH - done)


def _flow(fields: Iterator[Text], width: int, gap: str = _FIELD_GAP) -> list[Text]:
    """Fills lines with as many fields as fit."""
    lines: list[Text] = []
    for field in fields:
        if lines and cell_len(lines[-1].plain) + len(gap) + cell_len(field.plain) <= width:
            lines[-1].append(gap).append_text(field)
        else:
            lines.append(field)
    return lines


def _cropped(lines: Sequence[Text], width: int, height: int | None) -> list[Text]:
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return list(lines if height is None else lines[:height])
