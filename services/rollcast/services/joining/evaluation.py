"""Defines the work of evaluators, and their reports, as values."""

import enum
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollcast.services.joining.activity import ActorFailure

# The same as an option's values.
EvalActions: TypeAlias = Literal["likeliest", "drawn", "both"]


class EvaluationActions(enum.Enum):
    """The actions of an evaluation's episodes, with their numbers on the wire."""

    LIKELIEST = 0
    DRAWN = 1
    BOTH = 2

    @staticmethod
    def of_option(value: EvalActions) -> "EvaluationActions":
        """Returns the actions that an option asks for."""
        return EvaluationActions[value.upper()]

    @property
    def option(self) -> str:
        """The option's value."""
        return self.name.lower()

    @property
    def kinds(self) -> tuple["EvaluationActions", ...]:
        """The kinds of actions that are played, in their order: itself, or the two others."""
        both = (EvaluationActions.LIKELIEST, EvaluationActions.DRAWN)
        return both if self is EvaluationActions.BOTH else (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """The episodes that an evaluator plays with each policy.

    Attributes:
        n_episodes: Their number, for each kind of actions.
        seed: The seed from which the seeds of all episodes derive; the same for each policy and each kind.
        actions: The actions that are played.
        opponents: Whether the policy plays against random actions, and the versions that come with it.
    """

    n_episodes: int
    seed: int
    actions: EvaluationActions = EvaluationActions.LIKELIEST
    opponents: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisodes:
    """Episodes played with one policy; field by field as `rollcast.v1.Evaluation` documents it."""

    policy_version: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float
    actions: EvaluationActions = EvaluationActions.LIKELIEST
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """A report of an evaluator.

    Attributes:
        actor_id: The evaluator's name.
        incarnation: The number of its process.
        learner_nonce: The number of the learner whose policy was played.
        outcome: The episodes that were played, or why the evaluator ends.
    """

    actor_id: str
    incarnation: int
    learner_nonce: int
    outcome: PlayedEpisodes | ActorFailure
