"""The page of one learner: the headline, the charts, the figures, the lanes and the events."""

import html
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from nicegui import ui
from nicegui.element import Element

from rollcast.services.history.history import EventSeverity
from rollcast.services.process.printable import printable, printable_lines
from rollcast.services.status.numbers import clock, wall_clock
from rollcast.tools.dashboard import charts
from rollcast.tools.dashboard.controls import Controls
from rollcast.tools.dashboard.figures import (
    about_actor,
    event_rows,
    phase_of,
    subtitle_of,
    throttled_rows,
    title_of,
)
from rollcast.tools.dashboard.lanes import LONGEST_S, First, Lanes
from rollcast.tools.dashboard.metrics import Metrics
from rollcast.tools.dashboard.relays import Relays
from rollcast.tools.dashboard.text import Text
from rollcast.tools.dashboard.watched import Watched
from rollcast.tools.watching import wording
from rollcast.tools.watching.follower import Snapshot
from rollcast.tools.watching.rows import Row, rows
from rollcast.tools.watching.run_view import RunView
from rollcast.tools.watching.states import looks

# Seconds between two refreshes of a page; the learner sends an update once a second.
_LOOK_S: Final = 0.5
_MAX_EVENTS: Final = 100
_SPANS: Final = {60: "1 min", 300: "5 min", 3600: "1 h", 0: "all"}
_FIRST_SPAN: Final = 0
# A curve is redrawn after this share of the time that it shows, about a pixel, and at the latest after these seconds.
_REDRAWN: Final = 1 / 600
_LONGEST_REDRAW_S: Final = 10.0

_Which = Literal["all", "problems"]


class Events(Element, component="events.js"):
    """The list of events, the newest first."""


class _Gauge:
    """The place of one figure on the page."""

    def __init__(self) -> None:
        with ui.element("div").classes("figure") as self._root:
            self._name = Text(classes="name")
            self._value = Text(classes="value")
            self._note = Text(classes="note")
            self._gauge = ui.element("div").classes("gauge").props("role=meter aria-valuemin=0 aria-valuemax=100")
            with self._gauge:
                self._filled = ui.element("div")
        self._shown: Row | None = None
        self._root.set_visibility(False)

    def show(self, figure: Row | None) -> None:
        """Shows a figure; None: hides its place."""
        if figure == self._shown:
            return
        self._shown = figure
        self._root.set_visibility(figure is not None)
        if figure is None:
            return
        self._name.show(figure.name, figure.title)
        self._value.show(figure.text)
        self._value.props["data-figure"] = figure.name
        self._note.show(figure.note, figure.note)
        self._gauge.set_visibility(figure.share is not None)
        if figure.share is not None:
            percent = round(100 * min(max(figure.share, 0.0), 1.0))
            self._filled.style(f"width: {percent}%")
            self._gauge.props["aria-valuenow"] = percent
            self._gauge.props["aria-label"] = figure.name
            self._gauge.update()


class Page:
    """The page of one learner, in one tab of a browser.

    Args:
        watched: The learner.
        learners: All learners that have a page, in their order.
    """

    def __init__(self, watched: Watched, learners: Sequence[Watched]) -> None:
        self._watched = watched
        self._seen: tuple[int, str | None, bool] | None = None
        self._span_s = _FIRST_SPAN
        self._over: charts.XAxis = "steps"
        self._which: _Which = "all"
        self._find = ""
        self._first: First = "worst off"
        self._next_lines = 0.0
        self._dark = ui.dark_mode(None)
        ui.add_css(Path(__file__).with_name("style.css"))
        # Browsers show this at once. When the scripts are loaded, the rest of the page appears; style.css hides this.
        sentence = html.escape(wording.headline(watched.snapshot().view))
        ui.add_body_html(f'<div id="first" class="dash"><div class="sentence">{sentence}</div></div>')
        with ui.element("div").classes("dash"):
            self._build_head(learners)
            self._sentence = Text(classes="sentence").props("role=status aria-live=polite")
            self._problem = Text(classes="problem").props("role=alert")
            self._learning = Text(classes="problem lines").props("role=status data-learning")
            self._build_choices()
            self._build_charts(watched.snapshot().view)
            self._metrics = Metrics(self._choose)
            self._relays = Relays()
            self._build_lanes()
            self._build_events()
            self._build_settings()
        self.refresh()
        ui.timer(_LOOK_S, self.refresh)

    def _build_head(self, learners: Sequence[Watched]) -> None:
        if len(learners) > 1:
            with ui.element("nav").classes("learners").props('aria-label="learners"'):
                for index, other in enumerate(learners):
                    link = Text(other.address, tag="a")
                    link.props["href"] = f"/{index}"
                    if other is self._watched:
                        link.props["aria-current"] = "page"
        with ui.element("header"):
            Text("rollcast", tag="h1")
            self._title = Text(classes="run")
            self._phase = Text(classes="phase", tag="span")
            self._subtitle = Text(classes="soft")
            ui.element("div").classes("grow")
            # shows the result of the buttons; moved below them later
            outcome = Text(classes="outcome").props("role=status aria-live=polite data-outcome")
            self._controls = Controls(self._watched, outcome)
            theme = ui.button(icon="contrast", on_click=self._change_theme).props("flat dense round size=sm")
            theme.props["aria-label"] = "dark or light"
        outcome.move(ui.context.slot.parent)

    def _build_choices(self) -> None:
        with ui.element("div").classes("choices"):
            Text("show the last", tag="span")
            ui.toggle(_SPANS, value=self._span_s, on_change=lambda event: self._choose(span_s=event.value)).props(
                'dense flat no-caps aria-label="time to show" data-choice=span'
            )
            Text("over", tag="span")
            ui.toggle(
                ["steps", "time"], value=self._over, on_change=lambda event: self._choose(over=event.value)
            ).props('dense flat no-caps aria-label="horizontal axis of the return" data-choice=over')

    def _build_charts(self, view: RunView) -> None:
        with ui.element("div").classes("cards"):
            with ui.element("section").classes("card"):
                Text("return", tag="h2")
                self._return = ui.echart(self._return_options(view)).classes("chart").props("data-chart=return")
            with ui.element("section").classes("card"):
                Text("env steps/s", tag="h2")
                self._speed = ui.echart(self._speed_options(view)).classes("chart").props("data-chart=speed")
        with ui.element("div").classes("cards"):
            with ui.element("section").classes("card"):
                Text("figures", tag="h2")
                with ui.element("div").classes("figures"):
                    self._gauges = [_Gauge() for _ in range(15)]
            with ui.element("section").classes("card"):
                Text("policy lag of the trajectories trained on in the last minute", tag="h2")
                self._lag = ui.echart(charts.lag_chart(view.delays)).classes("chart low").props("data-chart=lag")
        self._drawn: dict[str, charts.Options] = {}

    def _build_lanes(self) -> None:
        with ui.element("section").classes("card"):
            with ui.element("div").classes("choices"):
                Text("lanes", tag="h2")
                ui.input(placeholder="find an actor", on_change=lambda e: self._choose(find=e.value or "")).props(
                    'dense aria-label="find an actor" clearable data-choice=find'
                )
                Text("first the", tag="span")
                ui.toggle(
                    ["worst off", "slowest"], value=self._first, on_change=lambda e: self._choose(first=e.value)
                ).props('dense flat no-caps aria-label="actors that come first" data-choice=first')
            self._lanes = Lanes(self._show_actor)
            with ui.element("div").classes("legend"):
                for whose, actor_id in (("learner", ""), ("actors", "a")):
                    Text(f"{whose}:", tag="span")
                    for look in looks(actor_id):
                        with ui.element("span"):
                            swatch = Text(look.letter, tag="span", classes="swatch")
                            swatch.style(f"background: {look.colour}; color: {look.ink}")
                            Text(look.name, tag="span")

    def _build_events(self) -> None:
        with ui.element("section").classes("card"):
            with ui.element("div").classes("choices"):
                Text("what happened", tag="h2")
                ui.toggle(
                    ["all", "problems"], value=self._which, on_change=lambda e: self._choose(which=e.value)
                ).props('dense flat no-caps aria-label="events to show" data-choice=events')
            self._throttled = Text(classes="problem").props("data-throttled")
            self._events = Events()
            self._events.props["events"] = []

    def _build_settings(self) -> None:
        with ui.element("details").classes("card").props("data-settings") as self._settings_card:
            Text("settings", tag="summary")
            self._settings = Text(tag="pre", classes="whole")

    def _choose(
        self,
        *,
        span_s: int | None = None,
        over: charts.XAxis | None = None,
        which: _Which | None = None,
        first: First | None = None,
        find: str | None = None,
    ) -> None:
        self._span_s = self._span_s if span_s is None else span_s
        self._over = over or self._over
        self._which = which or self._which
        self._first = first or self._first
        self._find = self._find if find is None else find
        self._seen = None
        self._next_lines = 0.0
        self.refresh()

    def _change_theme(self) -> None:
        self._dark.value = {None: True, True: False, False: None}[self._dark.value]

    def refresh(self) -> None:
        """Shows the changes, if there are any."""
        snapshot = self._watched.snapshot()
        seen = (snapshot.version, snapshot.problem, self._watched.may_operate)
        self._controls.show(None if snapshot.problem or not snapshot.view.status else snapshot.view.status.phase)
        if seen == self._seen:
            return
        self._seen = seen
        self._show_head(snapshot)
        self._show_numbers(snapshot.view)
        self._show_events(snapshot.view)
        self._relays.show(snapshot.view)
        self._lanes.show(snapshot.view, span_s=float(self._span_s or LONGEST_S), find=self._find, first=self._first)

    def _show_head(self, snapshot: Snapshot) -> None:
        view, problem = snapshot.view, snapshot.problem
        run = view.run
        settings = "" if run is None else printable_lines(run.settings)
        self._settings_card.set_visibility(bool(settings))
        self._settings.show(settings)
        self._title.show(title_of(view) or self._watched.address, "" if run is None else printable(run.run_dir))
        self._phase.show(phase_of(view, problem))
        started = "" if run is None else f"since {wall_clock(view.started_unix_s)}; rollcast {run.software_version}"
        self._subtitle.show(subtitle_of(view), printable(started))
        self._sentence.show(wording.headline(view))
        found = wording.learning(view)
        self._learning.set_visibility(bool(found))
        self._learning.show("\n".join(found))
        self._problem.set_visibility(problem is not None)
        if problem is not None:
            since = (
                ""
                if view.now_unix_s is None
                else f" Below is its last report, from {clock(view.since_start(view.now_unix_s))}."
            )
            self._problem.show(printable(f"{problem}.{since}"))

    def _show_numbers(self, view: RunView) -> None:
        shown = rows(view)
        for index, gauge in enumerate(self._gauges):
            gauge.show(shown[index] if index < len(shown) else None)
        now = time.monotonic()
        if now >= self._next_lines:
            span_s = self._span_s or view.since_start(view.now_unix_s or 0.0)
            self._next_lines = now + min(span_s * _REDRAWN, _LONGEST_REDRAW_S)
            self._draw(self._return, "return", self._return_options(view))
            self._draw(self._speed, "speed", self._speed_options(view))
            self._metrics.show(view, span_s=self._span_s, over=self._over)
        self._draw(self._lag, "lag", charts.lag_chart(view.delays))

    def _draw(self, chart: ui.echart, name: str, options: charts.Options) -> None:
        if self._drawn.get(name) != options:
            self._drawn[name] = options
            chart.options.clear()
            chart.options.update(options)
            chart.update()

    def _return_options(self, view: RunView) -> charts.Options:
        begin = None if view.now_unix_s is None or not self._span_s else view.now_unix_s - self._span_s
        return charts.return_chart(
            view.points(self._span_s or None),
            [point for point in view.evaluations if begin is None or point.time_s > begin],
            started_unix_s=view.started_unix_s,
            stop_return=None if view.run is None else view.run.stop_return,
            over=self._over,
        )

    def _speed_options(self, view: RunView) -> charts.Options:
        return charts.speed_chart(view.points(self._span_s or None), started_unix_s=view.started_unix_s)

    def _show_events(self, view: RunView) -> None:
        status = view.status
        throttled = [] if status is None else throttled_rows(status)
        self._throttled.set_visibility(bool(throttled))
        self._throttled.show("; ".join(throttled))
        chosen = [
            event for event in reversed(view.events) if self._which == "all" or event.severity is not EventSeverity.INFO
        ]
        rows = event_rows(view, chosen[:_MAX_EVENTS])
        if rows != self._events.props["events"]:
            self._events.props["events"] = rows
            self._events.update()

    def _show_actor(self, actor_id: str) -> None:
        view = self._watched.snapshot().view
        actor = next((actor for actor in view.actors if actor.actor_id == actor_id), None)
        if actor is None:
            return
        about = [event for event in reversed(view.events) if event.who == actor_id]
        with ui.dialog(value=True) as dialog, ui.card().props("data-actor-card"):
            Text(printable(actor_id), tag="h2")
            with ui.element("dl").classes("facts"):
                for name, text in about_actor(actor):
                    Text(name, tag="dt")
                    Text(text, tag="dd")
            if actor.last_error:
                Text(printable_lines(actor.last_error), tag="pre", classes="whole")
            Events().props["events"] = event_rows(view, about[:_MAX_EVENTS])
            ui.button("Close", on_click=dialog.close).props("flat no-caps")
        dialog.on("hide", dialog.delete)
