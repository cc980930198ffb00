"""The buttons of an operator: each describes its effect before a click, and shows the result after it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError, message_of
from rollcast.services.process.printable import printable
from rollcast.services.status.status import Phase
from rollcast.tools.dashboard.text import Text
from rollcast.tools.dashboard.watched import Watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A call of an operator.

    Attributes:
        name: The button's text.
        says: The effect of the call, as the button's tooltip.
        running: The text until the learner answers.
        call: Makes the call; returns the result as a sentence.
        confirm: True: the button asks for confirmation.
        phases: The phases in which the button can be used.
    """

    name: str
    says: str
    running: str
    call: Callable[[LearnerClient], str]
    confirm: bool = False
    phases: tuple[Phase, ...] = (Phase.TRAINING, Phase.PAUSED)


def _save_checkpoint(learner: LearnerClient) -> str:
    path, version = learner.save_checkpoint()
    return f"The checkpoint is written: {path}, with policy v{version:,}."


def _pause(learner: LearnerClient) -> str:
    learner.pause()
    return "Training is paused."


def _resume(learner: LearnerClient) -> str:
    learner.resume()
    return "Training continues."


def _stop(learner: LearnerClient) -> str:
    learner.stop()
    return "The learner ends training: it writes a last checkpoint and ends its actors."


ACTIONS: Final = (
    Action(
        name="Checkpoint",
        says="Writes a checkpoint after the running update; training continues.",
        running="The learner writes a checkpoint.",
        call=_save_checkpoint,
    ),
    Action(
        name="Pause",
        says="Stops training after the running update, until you resume it; actors fill the queue and wait.",
        running="The learner finishes its update.",
        call=_pause,
        phases=(Phase.TRAINING,),
    ),
    Action(
        name="Resume",
        says="Ends the pause: training continues.",
        running="The learner resumes.",
        call=_resume,
        phases=(Phase.PAUSED,),
    ),
    Action(
        name="Stop",
        says="Ends training for good after the running update: the learner writes a last checkpoint, and its actors "
        "end. This page cannot start training again.",
        running="The learner ends training.",
        call=_stop,
        confirm=True,
        phases=(Phase.STARTING, Phase.TRAINING, Phase.PAUSED),
    ),
)


class Controls:
    """The buttons of one page; only operators see them.

    Args:
        watched: The learner that the buttons operate.
        outcome: Shows the result of the last call.
    """

    def __init__(self, watched: Watched, outcome: Text) -> None:
        self._watched = watched
        self._outcome = outcome
        self._busy = False
        self._row = ui.element("div").props('role=group aria-label="operate the learner"')
        self._buttons: list[tuple[Action, ui.button]] = []
        with self._row:
            for action in ACTIONS:
                button = ui.button(action.name, on_click=lambda action=action: self._ask(action))
                button.props(f'flat dense no-caps data-action={action.name.lower()} aria-label="{action.name}"')
                with button:
                    ui.tooltip(action.says)
                button.props["title"] = action.says
                self._buttons.append((action, button))
        self.show(None)

    def show(self, phase: Phase | None) -> None:
        """Shows the buttons that an operator can use in a phase; None: the learner does not answer."""
        self._row.set_visibility(self._watched.may_operate)
        for action, button in self._buttons:
            fits = phase in action.phases
            button.set_enabled(fits and not self._busy)
            if action.name in ("Pause", "Resume"):
                # they share a place
                button.set_visibility(fits or (action.name == "Pause" and phase is not Phase.PAUSED))

    async def _ask(self, action: Action) -> None:
        if action.confirm:
            with ui.dialog() as dialog, ui.card():
                Text(f"{action.name} {self._watched.address}?", tag="h2")
                Text(action.says)
                with ui.row():
                    ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps autofocus")
                    ui.button(action.name, on_click=lambda: dialog.submit(True)).props(
                        "no-caps color=negative data-confirm"
                    )
            confirmed = await dialog
            dialog.delete()
            if not confirmed:
                self._outcome.show(f"{action.name}: nothing was done.")
                return
        await self._do(action)

    async def _do(self, action: Action) -> None:
        self._busy = True
        self._disable()
        self._outcome.show(action.running)
        try:
            told = await asyncio.to_thread(self._watched.call, action.call)
        except RollcastError as error:
            told = f"{action.name} has failed: {message_of(error)}"
        finally:
            self._busy = False
        self._outcome.show(printable(told))

    def _disable(self) -> None:
        for _, button in self._buttons:
            button.disable()
