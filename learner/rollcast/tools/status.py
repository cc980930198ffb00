"""`rollcast status`: shows the status of a learner."""

import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from rollcast.learner.commands.printing import print_json, print_line, print_table
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import NotReadyError, ProtocolMismatchError
from rollcast.services.spaces.spaces import describe_space
from rollcast.services.status.numbers import decimal
from rollcast.services.status.status import ActorInfo, LearnerStatus
from rollcast.tools.settings import StatusSettings

_ACTOR_COLUMNS = ("slot", "actor", "state", "envs", "rollouts", "env steps", "policy", "quiet")


def status(settings: StatusSettings, output: IO[str]) -> int:
    """Asks the learner for its status, prints it, and returns the exit code.

    Raises:
        ConfigurationError: If the certificates or tokens cannot be used.
        LearnerUnreachableError: If no learner answers at the address.
        UnauthenticatedError: If the learner requires a token and gets none, or an unknown one.
        PermissionDeniedError: If the token's role may not read the status.
    """
    with LearnerClient(settings.address, timeout_s=settings.timeout_s, security=settings.client_security()) as client:
        if settings.watch:
            for current in client.watch_status(1.0):
                show(settings, output, current, client.actors() if settings.actors else (), _describe(client))
        else:
            show(settings, output, client.status(), client.actors() if settings.actors else (), _describe(client))
    return 0


def _describe(client: LearnerClient) -> dict[str, Any]:
    """Returns the learner's description; empty if the learner is starting, or too old to know this call."""
    try:
        description = client.describe()
    except (NotReadyError, ProtocolMismatchError):
        return {}
    return {
        "network": description.policy.network,
        "n_rollout_steps": description.n_rollout_steps,
        "batch_size": description.batch_size,
        "envs_per_actor": description.n_envs,
        "spaces": {
            key: {
                "observation": describe_space(substep.observation),
                "action": describe_space(substep.action),
                "n_agents": substep.n_agents,
            }
            for key, substep in description.spaces.items()
        },
    }


def show(
    settings: StatusSettings,
    output: IO[str],
    current: LearnerStatus,
    actors: Sequence[ActorInfo],
    description: Mapping[str, Any],
) -> None:
    """Prints a status with the learner's description and, with `--actors`, its actors."""
    values = dataclasses.asdict(current) | dict(description)
    if settings.json_output:
        document = values
        if settings.actors:
            document["actors"] = [dataclasses.asdict(info) for info in actors]
        print_json(output, _as_json(document))
        return
    print_table(output, _rows(values))
    if actors:
        print_table(output, [_ACTOR_COLUMNS, *map(_actor_row, actors)])
    for info in actors:
        if info.last_error:
            print_line(output, f"{info.actor_id}: {info.last_error}")


def _actor_row(info: ActorInfo) -> tuple[str, ...]:
    name = info.actor_id if info.incarnation == 1 else f"{info.actor_id} #{info.incarnation}"
    return (
        str(info.slot),
        f"{name} via {', '.join(info.via)}" if info.via else name,
        info.state.name.lower(),
        str(info.n_envs),
        f"{info.rollouts:,}",
        f"{info.env_steps:,}",
        str(info.policy_version),
        f"{info.idle_s:.1f} s",
    )


def _rows(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the rows of the table: names with dots for nested values, and values as text."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{prefix}{name}.")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                yield from _rows(item, f"{prefix}{name}.{index}.")
        else:
            yield f"{prefix}{name}", _as_text(value)


def _as_text(value: Any) -> str:  # noqa: ANN401 - any value of a status
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, float):
        return decimal(value) if math.isfinite(value) else str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _as_json(value: Any) -> Any:  # noqa: ANN401 - any value of a status
    """Converts a value for JSON: enums to names, infinity (no limit) and NaN to null."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
