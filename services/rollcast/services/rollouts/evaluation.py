"""Defines the work of evaluators, and their reports, as values."""

from dataclasses import dataclass

from rollcast.services.rollouts.rollouts import ActorFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """The episodes that an evaluator plays with each policy, all with the likeliest actions.

    Attributes:
        n_episodes: Their number.
        seed: The seed from which the seeds of all episodes derive; the same for each policy.
    """

    n_episodes: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisodes:
    """Episodes played with one policy; field by field as `rollcast.v1.Evaluation` documents it."""

    policy_version: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float


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
