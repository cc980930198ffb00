"""The faults of an actor and its connection, drawn from a seed."""

import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tests.chaos.processes import SupervisedProcess
from tests.chaos.proxy import NetworkFault, Proxy, Ways

ProcessFault = Literal["kill", "terminate", "freeze"]
Kind = Literal[ProcessFault, NetworkFault]

# The weight of each, of 53. A process takes seconds of both cores to start, and a connection that has gone silent
# is found by keepalive only: these are drawn less often than what is over in a second.
_WEIGHTS: Final[dict[Kind, int]] = {
    "kill": 3,
    "terminate": 2,
    "freeze": 4,
    "delay": 5,
    "cut": 9,
    "half_close": 6,
    "stall": 4,
    "flip": 4,
    "flip_policy": 4,
    "garble": 2,
    "black_hole": 1,
    "inflate": 1,
    "flip_turn": 4,
    "flip_actions": 4,
}
# Of clients whose environments dial in alone: an actor's connection has longer messages. No set: a seed draws by order.
_OF_TURNS: Final[tuple[Kind, ...]] = ("flip_turn", "flip_actions")
_LONG: Final[frozenset[Kind]] = frozenset({"garble", "black_hole", "inflate"})
# Faults that last, and for how long: a dead connection is found after 9 s, so some freezes are longer than that.
_LASTING_S: Final[dict[Kind, tuple[float, ...]]] = {
    "freeze": (0.2, 1.0, 3.0, 65.0),
    "delay": (0.5, 1.0, 2.0),
    "stall": (0.2, 1.0, 3.0, 8.0),
}
_DELAYS_S: Final = (0.01, 0.05, 0.2)
_FLIP_TIMEOUT_S: Final = 5.0
_SHORT_S: Final = 3.0

KINDS: Final = tuple(kind for kind in _WEIGHTS if kind not in _OF_TURNS)
# Those of a process whose connections have small messages.
KINDS_OF_CALLS: Final[tuple[Kind, ...]] = (*get_args(ProcessFault), "delay", "cut", "half_close", "stall", "black_hole")
# Those of clients whose environments dial in.
KINDS_OF_CLIENTS: Final[tuple[Kind, ...]] = (*KINDS_OF_CALLS, *_OF_TURNS)

assert set(_WEIGHTS) == {kind for literal in get_args(Kind) for kind in (get_args(literal) or (literal,))}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        seconds: The time after which it is ended, in seconds; 0 for kinds that do not last.
        delay_s: The time by which a delay delays each piece.
    """

    kind: Kind
    seconds: float
    delay_s: float

    def __str__(self) -> str:
        return f"{self.kind} for {self.seconds:g} s" if self.seconds else self.kind

    def inject(self, victim: SupervisedProcess, proxy: Proxy | Ways, stop: threading.Event) -> None:
        """Injects the fault, and ends it if it lasts; `stop` ends it early."""
        match self.kind:
            case "kill":
                victim.signal(signal.SIGKILL)
            case "terminate":
                victim.signal(signal.SIGTERM)
            case "freeze":
                victim.signal(signal.SIGSTOP)
                stop.wait(self.seconds)
                victim.signal(signal.SIGCONT)
            case _:
                proxy.inject(self.kind, self.delay_s, _FLIP_TIMEOUT_S)
                stop.wait(self.seconds)
                proxy.heal()


def draw_faults(n_faults: int, rng: random.Random, *, short: bool, only: Sequence[Kind] = ()) -> list[Fault]:
    """Draws faults.

    Args:
        short: Leaves out faults that last longer than a few seconds, or are found by keepalive or by silence only.
        only: The kinds of faults; none: all of an actor.

    Returns:
        The faults.
    """
    kinds = list(only) or [kind for kind in KINDS if not (short and kind in _LONG)]
    drawn = rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds], k=n_faults)
    return [
        Fault(
            kind=kind,
            seconds=rng.choice([s for s in _LASTING_S.get(kind, (0.0,)) if not short or s <= _SHORT_S]),
            delay_s=rng.choice(_DELAYS_S),
        )
        for kind in drawn
    ]
