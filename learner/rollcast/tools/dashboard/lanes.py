"""The lanes of the page: the activity of the learner and of every actor; the worst-off actors are rows."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from rollcast.services.status.numbers import period
from rollcast.services.status.status import ActorInfo, ActorState
from rollcast.tools.dashboard.figures import COLUMNS, actor_row, learner_row
from rollcast.tools.dashboard.lane_changes import Cells, SentLanes, largest_states
from rollcast.tools.watching.run_view import RunView
from rollcast.tools.watching.states import UNKNOWN, StateLook, looks

# The actors that come first.
First = Literal["worst off", "slowest"]
# Actors that are rows; the others are strips.
N_ROWS: Final = 12
# The number of cells of a lane, by the seconds that it shows. A learner remembers an hour.
_CELLS: Final = {60.0: 60, 300.0: 100, 3600.0: 240}
LONGEST_S: Final = 3600.0
# Updates come once a second. Each renews the cells of one second, even if it comes early.
_EARLY_S: Final = 0.5


class Lanes(Element, component="lanes.js"):
    """The lanes of one page; sends only changes to the browser.

    Args:
        on_choice: Called with the name of the chosen actor; empty: the learner.
    """

    def __init__(self, on_choice: Callable[[str], None]) -> None:
        super().__init__()
        self._props["states"] = {
            kind: list(map(_look, looks(actor))) for kind, actor in (("learner", ""), ("actor", "a"))
        }
        self._props["unknown"] = UNKNOWN.name
        self._props["columns"] = [{"name": name, "title": title} for name, title in COLUMNS]
        self._sent = SentLanes()
        self._is_ready = False
        self._shown: tuple[RunView, float, str, First] | None = None
        self._sent_picture: dict[str, Any] = {}
        self._scale: tuple[float, int] | None = None
        self._next_cells = 0.0
        self._cells: dict[str, Cells] = {}

        def choose(event: GenericEventArguments) -> None:
            on_choice(str(event.args))

        def begin(_: GenericEventArguments) -> None:
            self._is_ready = True
            self.begin_again()
            if self._shown is not None:
                # Shows the last update, because there may be no other.
                view, span_s, find, first = self._shown
                self.show(view, span_s=span_s, find=find, first=first)

        self.on("chosen", choose)
        self.on("ready", begin)

    def begin_again(self) -> None:
        """Forgets the sent lanes, so that the next update sends all."""
        self._sent.forget()
        self._sent_picture = {}
        self._scale = None

    def show(self, view: RunView, *, span_s: float, find: str, first: First) -> None:
        """Sends the changes.

        Args:
            view: The run.
            span_s: Seconds to show: 60, 300 or 3600.
            find: Actors whose name, or whose relay's name, contains this text come first; empty: no search.
            first: The order of the actors.
        """
        self._shown = view, span_s, find, first
        if not self._is_ready or view.now_s is None:
            return
        n_cells = _CELLS[span_s]
        forget = self._scale != (span_s, n_cells)
        self._scale = span_s, n_cells
        ranked = view.ranked_actors()
        if first == "slowest":
            # connected actors first; the others have no speed
            ranked.sort(key=lambda actor: (actor.state is not ActorState.STREAMING, actor.env_steps_per_second))
        if find:
            ranked.sort(
                key=lambda actor: not any(find.lower() in name.lower() for name in (actor.actor_id, *actor.via))
            )
        rows, others = ranked[:N_ROWS], ranked[N_ROWS:]
        self._refresh_cells(view, ranked, span_s=span_s, n_cells=n_cells, anew=forget)
        lanes = {actor_id: self._cells[actor_id] for actor_id in ("", *(actor.actor_id for actor in rows))}
        lanes |= {actor.actor_id: largest_states(self._cells[actor.actor_id]) for actor in others}
        if forget:
            self._sent.forget()
        changes, gone = self._sent.changes(lanes)
        picture = {
            "rows": [learner_row(view), *map(actor_row, rows)],
            "order": [actor.actor_id for actor in others],
            "others": f"{len(rows)} of {len(ranked)} actors are rows above, the {first} first; the other "
            f"{len(others)} are a strip of colour each.",
            "from": f"{period(span_s)} ago",
            "until": "now",
        }
        new = {name: value for name, value in picture.items() if self._sent_picture.get(name) != value}
        self._sent_picture = picture
        if changes or gone or new or forget:
            scale = {"n": n_cells, "cell_s": span_s / n_cells, "end_unix_s": view.now_unix_s}
            self.run_method(
                "change", {"forget": forget, "gone": gone, "scale": scale, "lanes": changes, "picture": new}
            )

    def _refresh_cells(
        self, view: RunView, actors: Sequence[ActorInfo], *, span_s: float, n_cells: int, anew: bool
    ) -> None:
        """Computes the lanes again: all of them when a cell ends, those of new actors at once."""
        now = time.monotonic()
        anew = anew or now >= self._next_cells
        if anew:
            self._next_cells = now + span_s / n_cells - _EARLY_S
        known = {} if anew else self._cells
        self._cells = {
            actor_id: known[actor_id] if actor_id in known else view.lane(actor_id, span_s, n_cells)
            for actor_id in ("", *(actor.actor_id for actor in actors))
        }


def _look(look: StateLook) -> dict[str, Any]:
    return {
        "letter": look.letter,
        "name": look.name,
        "colour": look.colour,
        "ink": look.ink,
        # lower case: a state of waiting
        "waits": look.letter.islower(),
    }
