"""Defines the plan of an evaluation, and the reports of evaluators."""

import enum
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollcast.services.joining.activity import ActorFailure

# The values of the option.
EvalActions: TypeAlias = Literal["likeliest", "drawn", "both"]


class EvaluationActions(enum.Enum):
    """The kinds of actions in an evaluation's episodes, with their numbers on the wire."""

    LIKELIEST = 0
    DRAWN = 1
    BOTH = 2

    @staticmethod
    def of_option(value: EvalActions) -> "EvaluationActions":
        """Returns the actions for an option's value."""
        return EvaluationActions[value.upper()]

    @property
    def option(self) -> str:
        """The option's value."""
        return self.name.lower()

    @property
    def kinds(self) -> tuple["EvaluationActions", ...]:
        """The kinds of actions to play, in order. BOTH stands for the two other kinds."""
        both = (EvaluationActions.LIKELIEST, EvaluationActions.DRAWN)
        return both if self is EvaluationActions.BOTH else (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """The episodes that an evaluator plays with each policy.

    Attributes:
        n_episodes: The number of episodes for each kind of actions.
        seed: The seed from which the seeds of all episodes derive. Each policy and each kind of actions uses the same
            seeds.
        actions: The kind of actions to play.
        opponents: Whether the policy plays against random actions and against the earlier versions in its file.
    """

    n_episodes: int
    seed: int
    actions: EvaluationActions = EvaluationActions.LIKELIEST
    opponents: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisodes:
    """Episodes played with one policy. `rollcast.v1.Evaluation` documents the fields."""

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
        incarnation: The incarnation of the evaluator's process.
        learner_nonce: The nonce of the learner whose policy was played.
        outcome: The played episodes, or the reason why the evaluator ends.
    """

    actor_id: str
    incarnation: int
    learner_nonce: int
    outcome: PlayedEpisodes | ActorFailure
