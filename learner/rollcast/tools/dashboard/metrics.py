"""The metrics of a run on its page: a chart of each chosen metric."""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from nicegui import ui

from rollcast.services.process.printable import printable
from rollcast.tools.dashboard import charts
from rollcast.tools.dashboard.text import Text
from rollcast.tools.watching.run_view import RunView

# Last parts of the names of metrics that the page shows at first.
_FIRST: Final = (
    "policy_loss",
    "loss",
    "value_loss",
    "critic_loss",
    "entropy",
    "approx_kl",
    "learning_rate",
    "grad_norm",
)
_N_FIRST: Final = 5


class Metrics:
    """The card with the charts of metrics.

    Args:
        on_choice: Called when other metrics are chosen.
    """

    def __init__(self, on_choice: Callable[[], None]) -> None:
        self._on_choice = on_choice
        self._chosen: list[str] | None = None
        self._charts: dict[str, ui.echart] = {}
        self._drawn: dict[str, charts.Options] = {}
        with ui.element("section").classes("card").props("data-metrics") as self._root:
            with ui.element("div").classes("choices"):
                Text("metrics", tag="h2")
                self._select = ui.select({}, multiple=True).props(
                    'dense options-dense use-chips aria-label="metrics to show" data-choice=metrics'
                )
                # only choices made in the browser, not those of `show`
                self._select.on("update:model-value", self._choose)
            self._grid = ui.element("div").classes("metrics")

    def show(self, view: RunView, *, span_s: float, over: charts.XAxis) -> None:
        """Draws the chosen metrics.

        Args:
            view: The run.
            span_s: The last seconds to draw; 0: all.
            over: The unit of the horizontal axis.
        """
        curves = view.curves()
        self._root.set_visibility(bool(curves))
        names = {name: printable(name) for name in curves}
        if names != self._select.options:
            chosen = first_metrics(names) if self._chosen is None else self._chosen
            self._select.set_options(names, value=[name for name in chosen if name in names])
        begin_unix_s = (view.now_unix_s or 0.0) - span_s if span_s else 0.0
        self._place(self._select.value)
        for name, chart in self._charts.items():
            options = charts.metric_chart(
                curves.get(name), begin_unix_s=begin_unix_s, started_unix_s=view.started_unix_s, over=over
            )
            if self._drawn.get(name) != options:
                self._drawn[name] = options
                chart.options.clear()
                chart.options.update(options)
                chart.update()

    def _choose(self) -> None:
        self._chosen = list(self._select.value)
        self._on_choice()

    def _place(self, names: Iterable[str]) -> None:
        """Makes the charts of the chosen metrics, in their order, unless they exist."""
        if list(names) == list(self._charts):
            return
        self._grid.clear()
        self._charts, self._drawn = {}, {}
        with self._grid:
            for name in names:
                with ui.element("div"):
                    Text(printable(name), tag="h2")
                    empty = charts.metric_chart(None, begin_unix_s=0.0, started_unix_s=0.0, over="steps")
                    self._charts[name] = ui.echart(empty).classes("chart low").props("data-chart=metric")


def first_metrics(names: Collection[str]) -> list[str]:
    """Returns the metrics to show at first: losses, entropy, KL and learning rate of the algorithm that has them."""
    found = [name for end in _FIRST for name in names if name.rsplit("/", 1)[-1] == end]
    return found[:_N_FIRST]
