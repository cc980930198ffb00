"""Reads the place of this process among the ranks of a run from torchrun's environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rollcast.services.errors import ConfigurationError

_RUN_WITH: Final = "start all ranks with torchrun, or unset RANK and WORLD_SIZE to train with one"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """The place of a process among the ranks of a run.

    Attributes:
        rank: The number of the process, from 0.
        n_ranks: W, at least 2.
        n_local_ranks: The ranks on this machine, which share its cores.
        local_rank: The number of the process among the ranks on this machine.
        host: The host of the store through which the ranks find each other.
        port: The store's port.
        attempt: The number of times that torchrun has restarted the ranks.
        hosts_store: True if this process must serve the store: rank 0, unless torchrun serves it.
    """

    rank: int
    n_ranks: int
    n_local_ranks: int
    local_rank: int
    host: str
    port: int
    attempt: int = 0
    hosts_store: bool = False


def rank_info(variables: Mapping[str, str]) -> RankInfo | None:
    """Returns the place of this process according to the variables; None for a single process.

    Args:
        variables: The environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them.

    Raises:
        ConfigurationError: A variable is missing or invalid.
    """
    given = [name for name in ("RANK", "WORLD_SIZE") if variables.get(name)]
    if not given:
        return None
    if len(given) == 1:
        missing = "WORLD_SIZE" if given == ["RANK"] else "RANK"
        raise ConfigurationError(
            f"{given[0]} is {variables[given[0]]!r}, and {missing} is not set; expected both or neither; {_RUN_WITH}"
        )
    n_ranks = _number(variables, "WORLD_SIZE", 1, None)
    rank = _number(variables, "RANK", 0, n_ranks - 1)
    if n_ranks == 1:
        return None
    host = variables.get("MASTER_ADDR", "")
    if not host or not variables.get("MASTER_PORT"):
        missing = "MASTER_PORT" if host else "MASTER_ADDR"
        raise ConfigurationError(
            f"RANK is {rank} and WORLD_SIZE {n_ranks}, and {missing} is not set; expected the host and the port at "
            f"which the ranks find each other; {_RUN_WITH}"
        )
    return RankInfo(
        rank=rank,
        n_ranks=n_ranks,
        n_local_ranks=_number(variables, "LOCAL_WORLD_SIZE", 1, n_ranks) if "LOCAL_WORLD_SIZE" in variables else 1,
        local_rank=_number(variables, "LOCAL_RANK", 0, None) if "LOCAL_RANK" in variables else 0,
        host=host,
        port=_number(variables, "MASTER_PORT", 1, 65535),
        attempt=_number(variables, "TORCHELASTIC_RESTART_COUNT", 0, None)
        if "TORCHELASTIC_RESTART_COUNT" in variables
        else 0,
        hosts_store=rank == 0 and variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
    )


def refuse_ranks(variables: Mapping[str, str], program: str) -> None:
    """Refuses to run as one of several ranks.

    Args:
        variables: See `rank_info`.
        program: The command, which supports only one process.

    Raises:
        ConfigurationError: The variables name several ranks.
    """
    place = rank_info(variables)
    if place is not None:
        raise ConfigurationError(
            f"this process was started as rank {place.rank} of {place.n_ranks}, and {program} starts its own actors; "
            "expected rollcast learner under torchrun, to which actors dial in; start learner and actors separately"
        )


def _number(variables: Mapping[str, str], name: str, least: int, most: int | None) -> int:
    text = variables[name]
    # Only ASCII: int() takes the digits of every script.
    value = int(text) if text.isascii() and text.isdecimal() else None
    if value is None or value < least or (most is not None and value > most):
        expected = f"{least} or more" if most is None else f"{least} to {most}"
        raise ConfigurationError(f"{name} is {text!r}; expected a whole number, {expected}; {_RUN_WITH}")
    return value
