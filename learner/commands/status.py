"""`rollcast status`: how a learner stands."""

import dataclasses
import enum
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from learner.settings import StatusSettings
from services.client import LearnerClient
from services.status import ActorInfo, LearnerStatus


def status(settings: StatusSettings, console: Console) -> int:
    """Asks the learner and prints what it says; returns the exit code.

    Raises:
        LearnerUnreachableError: Nobody answers at the address.
    """
    with LearnerClient(settings.address, timeout_s=settings.timeout_s) as client:
        if settings.watch:
            for current in client.watch_status(1.0):
                _show(settings, console, current, client.actors() if settings.actors else ())
        else:
            _show(settings, console, client.status(), client.actors() if settings.actors else ())
    return 0


def _show(settings: StatusSettings, console: Console, current: LearnerStatus, actors: Sequence[ActorInfo]) -> None:
    if settings.json_output:
        document = _plain(current) | ({"actors": [_plain(info) for info in actors]} if settings.actors else {})
        console.print_json(json.dumps(document))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _plain(current).items():
        table.add_row(
            name,
            f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value),
        )
    console.print(table)
    if actors:
        console.print(_actors_table(actors))
    for info in actors:
        if info.last_error:
            console.print(f"{info.actor_id}: {info.last_error}", soft_wrap=True, highlight=False, markup=False)


def _actors_table(actors: Sequence[ActorInfo]) -> Table:
    table = Table("slot", "actor", "state", "envs", "rollouts", "env steps", "policy", "quiet", box=None)
    for info in actors:
        table.add_row(
            str(info.slot),
            info.actor_id if info.incarnation == 1 else f"{info.actor_id} #{info.incarnation}",
            info.state.name.lower(),
            str(info.n_envs),
            f"{info.rollouts:,}",
            f"{info.env_steps:,}",
            str(info.policy_version),
            f"{info.idle_s:.1f} s",
        )
    return table


def _plain(value: LearnerStatus | ActorInfo) -> dict[str, Any]:
    return {
        name: item.name.lower() if isinstance(item, enum.Enum) else item
        for name, item in dataclasses.asdict(value).items()
    }
