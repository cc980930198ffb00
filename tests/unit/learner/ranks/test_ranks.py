from pathlib import Path

import pytest
import torch

from rollcast.learner.ranks.ranks import ONE_RANK, Ranks
from rollcast.services.errors import ConfigurationError, RankLostError
from tests.unit.learner.ranks.boards import BoardInMemory


def of_two(rank: int, texts: dict[str, str]) -> Ranks:
    return Ranks(
        BoardInMemory(rank, 2, texts),
        torch.device("cpu"),
        n_local_ranks=2,
        data_timeout_s=1.0,
        check_updates=10,
        advertised_host="",
    )


def refuse(reduction: object) -> None:
    raise ConfigurationError("it does not average its gradients; expected another algorithm; take one")


def test_a_learner_that_is_alone_waits_for_nobody_and_decides_by_itself(tmp_path: Path):
    assert (ONE_RANK.rank, ONE_RANK.n_ranks, ONE_RANK.is_first) == (0, 1, True)
    ONE_RANK.meet("nobody")
    assert ONE_RANK.broadcast_text("done", "STEPS", what="itself") == "STEPS"
    ONE_RANK.join(refuse)
    assert ONE_RANK.begins_checkpoint(is_writing=True)
    assert ONE_RANK.goes_on(is_done=False, end=0)
    assert not ONE_RANK.goes_on(is_done=True, end=0), "stopped, and not at its end"
    with pytest.raises(RankLostError, match="there is no rank 1: this learner is alone"):
        ONE_RANK.group.told("done", 1, what="rank 1")


def test_several_ranks_go_on_until_all_have_agreed_and_rank_0_says_when():
    texts: dict[str, str] = {}
    first, second = of_two(0, texts), of_two(1, texts)
    for ranks in (first, second):
        assert ranks.goes_on(is_done=True, end=2)
        assert not ranks.begins_checkpoint(is_writing=False), "it asks for one"
    assert (first.end, second.end) == (2, 0)
    assert first.broadcast_text("done", "STEPS", what="rank 0") == "STEPS"
    assert second.broadcast_text("done", "", what="rank 0") == "STEPS"
    with pytest.raises(ConfigurationError, match="does not average its gradients"):
        second.join(refuse)
