"""Defines how states look, in the terminal, on the page and in legends: one letter, name and colour for each.

The colours are those of Okabe and Ito, which people with any colour vision can tell apart, and grey. States of actors
and of the learner that are alike share a colour. Upper case means working, lower case waiting.
"""

from dataclasses import dataclass
from typing import Final

from rollcast.services.history.history import LearnerActivity
from rollcast.services.joining.activity import ActingState

ORANGE: Final = "#E69F00"
SKY_BLUE: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
BLUE: Final = "#0072B2"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#999999"

_BLACK: Final = "#000000"
_WHITE: Final = "#FFFFFF"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLook:
    """The look of a state.

    Attributes:
        letter: One letter of ASCII, unique among the states.
        name: The state's name, a few words in lower case.
        short: A name of at most 14 characters, for columns.
        colour: The colour of its area, as `#RRGGBB`.
        ink: The colour of text on that area: black or white, whichever is easier to read.
    """

    letter: str
    name: str
    short: str
    colour: str
    ink: str = _BLACK


ACTING: Final[dict[ActingState, StateLook]] = {
    ActingState.CONNECTING: StateLook(letter="C", name="connecting", short="connecting", colour=VERMILLION),
    ActingState.ACTING: StateLook(letter="A", name="acting", short="acting", colour=GREEN),
    ActingState.SENDING: StateLook(letter="S", name="sending", short="sending", colour=SKY_BLUE),
    ActingState.WAITING_FOR_CREDIT: StateLook(
        letter="c", name="waiting for credit", short="awaits credit", colour=YELLOW
    ),
    ActingState.WAITING_FOR_POLICY: StateLook(
        letter="p", name="waiting for a policy", short="awaits policy", colour=ORANGE
    ),
    ActingState.LOADING_POLICY: StateLook(letter="L", name="loading a policy", short="loads policy", colour=PURPLE),
}

LEARNING: Final[dict[LearnerActivity, StateLook]] = {
    LearnerActivity.WAITING: StateLook(letter="w", name="waiting for rollouts", short="awaits rollout", colour=ORANGE),
    LearnerActivity.UPDATING: StateLook(letter="U", name="updating", short="updating", colour=BLUE, ink=_WHITE),
    LearnerActivity.PUBLISHING: StateLook(letter="P", name="publishing", short="publishing", colour=SKY_BLUE),
    LearnerActivity.CHECKPOINTING: StateLook(letter="K", name="checkpointing", short="checkpointing", colour=PURPLE),
    LearnerActivity.PAUSED: StateLook(letter="z", name="paused", short="paused", colour=GREY),
}

# The state is not known: the actor was not connected, or the learner was down. Its area has no colour.
UNKNOWN: Final = StateLook(letter=".", name="not known", short="not known", colour="")


def looks(actor_id: str) -> tuple[StateLook, ...]:
    """Returns the looks of the states of a lane, in the order of its columns.

    Args:
        actor_id: The actor's name; empty: the learner.
    """
    return (
        tuple(ACTING[state] for state in ActingState) if actor_id else tuple(LEARNING[did] for did in LearnerActivity)
    )
