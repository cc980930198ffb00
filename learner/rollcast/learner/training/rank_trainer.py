"""Connects the trainer of a rank with those of the others."""

from dataclasses import dataclass
from typing import Final

from rollcast.learner.experience.ranked import RankWishes
from rollcast.learner.ranks.run import RunRanks
from rollcast.learner.training.summary import EndReason

_DONE: Final = "done"


@dataclass(frozen=True, slots=True)
class TrainerOfRank:
    """The connection of a rank's trainer with those of the other ranks.

    Attributes:
        wishes: What this rank wants of the next round.
        ranks: The ranks.
    """

    wishes: RankWishes
    ranks: RunRanks

    @property
    def is_first(self) -> bool:
        """True for rank 0."""
        return self.ranks.rank == 0

    def ask_for_checkpoint(self) -> None:
        """Asks all ranks for a checkpoint after their next update. Any thread may call."""
        self.wishes.checkpoint = True

    def agree_at_start(self, end: EndReason | None) -> EndReason | None:
        """Returns why rank 0 finds that the run had ended before it was resumed; None if it goes on."""
        group = self.ranks.group
        if self.is_first:
            group.tell(_DONE, "" if end is None else end.name)
            return end
        told = group.told(_DONE, 0, what="rank 0 to resume the run")
        return EndReason[told] if told else None

    def finish(self) -> None:
        """Waits until every rank has ended its run."""
        self.ranks.meet("the end of all ranks")
