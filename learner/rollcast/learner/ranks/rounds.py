"""Makes the ranks of a run agree on the next step before each update."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import torch

from rollcast.learner.ranks.equal_policies import check_equal
from rollcast.learner.ranks.group import Group

# The largest number of returns that a rank reports in a round: as many as in the mean return.
MAX_RETURNS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """The state of a rank before an update; each field is a number for all ranks.

    Attributes:
        has_batch: True if it has a batch to learn from.
        env_steps: The environment steps since the last batch.
        ends: The number of the reason if the run has reached its end; 0: it has not.
        stops: 0: no; 1: it was asked to stop; 2: like 1, and its actors wait for the next learner.
        is_paused: True if an operator has paused training.
        checkpoint: True if a checkpoint is due.
        gives_up: True if no rank has had a batch for too long.
        n_actors: The number of its actors.
        n_episodes: The number of episodes that ended in these steps.
        returns: The returns of these episodes, in order; only the last `MAX_RETURNS` count.
        largest_weight: The largest importance weight of its batch before normalisation; 0: none.
        digest: The digest of its policy; 0: no comparison in this round.
    """

    has_batch: bool = False
    env_steps: int = 0
    ends: int = 0
    stops: int = 0
    is_paused: bool = False
    checkpoint: bool = False
    gives_up: bool = False
    n_actors: int = 0
    n_episodes: int = 0
    returns: Sequence[float] = ()
    largest_weight: float = 0.0
    digest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The ranks' agreement on the next step; the same at every rank.

    Attributes:
        has_batch: True if a rank has a batch: then an update follows, in which ranks without a batch have no weight.
        env_steps: The environment steps of all ranks.
        ends: The number of the reason if the run has reached its end, according to rank 0; 0: it has not.
        stops: 0: no; 1: a rank was asked to stop; 2: like 1, and actors wait for the next learner.
        is_paused: True if training is paused.
        checkpoint: True if a checkpoint is due.
        gives_up: True if no rank has had a batch for too long.
        n_actors: The number of actors of each rank.
        n_episodes: The number of episodes that ended in these steps.
        returns: The returns of these episodes by rank; at most the last `MAX_RETURNS` of each rank.
        largest_weight: The largest importance weight of all batches; 0: none.
    """

    has_batch: bool
    env_steps: int
    ends: int
    stops: int
    is_paused: bool
    checkpoint: bool
    gives_up: bool
    n_actors: Sequence[int]
    n_episodes: int
    returns: tuple[float, ...]
    largest_weight: float


# The fields of one number each; after them come the returns.
_FIELDS: Final = tuple(field.name for field in fields(RankState) if field.name != "returns")


class RankRounds:
    """The rounds of a run: before each update, every rank reports its state. Used by the trainer's thread.

    Args:
        group: Connects the ranks.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._n_rounds = 0

    def agree(self, state: RankState) -> Round:
        """Reports the state of this rank, waits for the other ranks, and returns the agreement.

        Raises:
            RankLostError: Another rank has ended, or has not reported in time.
            RollcastError: The policies of the ranks differ.
        """
        self._n_rounds += 1
        own = torch.zeros(len(_FIELDS) + MAX_RETURNS, dtype=torch.float64)
        own[: len(_FIELDS)] = torch.tensor([float(getattr(state, name)) for name in _FIELDS], dtype=torch.float64)
        returns = state.returns[-MAX_RETURNS:]
        own[len(_FIELDS) : len(_FIELDS) + len(returns)] = torch.tensor(returns, dtype=torch.float64)
        rows = self._group.gather(own, f"the states of all ranks before update round {self._n_rounds}").tolist()
        states = [dict(zip(_FIELDS, row[: len(_FIELDS)], strict=True)) for row in rows]
        check_equal([int(other["digest"]) for other in states], self._n_rounds)
        return Round(
            has_batch=any(other["has_batch"] for other in states),
            env_steps=int(sum(other["env_steps"] for other in states)),
            # Rank 0 alone: it has the metrics. Steps are the same everywhere.
            ends=int(states[0]["ends"]),
            stops=int(max(other["stops"] for other in states)),
            is_paused=any(other["is_paused"] for other in states),
            checkpoint=any(other["checkpoint"] for other in states),
            gives_up=all(other["gives_up"] for other in states),
            n_actors=[int(other["n_actors"]) for other in states],
            n_episodes=int(sum(other["n_episodes"] for other in states)),
            returns=tuple(
                value
                for other, row in zip(states, rows, strict=True)
                for value in row[len(_FIELDS) : len(_FIELDS) + min(int(other["n_episodes"]), MAX_RETURNS)]
            ),
            largest_weight=max(other["largest_weight"] for other in states),
        )
