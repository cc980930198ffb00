import pytest

from rollcast.learner.ranks.assignment import RankAssignment, part_rank
from rollcast.services.errors import NotReadyError, RankLostError
from rollcast.services.joining.join import ActorRole
from tests.integration.learner_fakes import offer
from tests.unit.learner.ranks.boards import BoardInMemory


def make_assignments(n_ranks: int = 2) -> list[RankAssignment]:
    texts: dict[str, str] = {}
    assignment = [RankAssignment(BoardInMemory(rank, n_ranks, texts)) for rank in range(n_ranks)]
    for own in assignment:
        own.serve_at([f"host:{rank}" for rank in range(n_ranks)])
    return assignment


def test_new_actors_are_spread_over_the_ranks_whichever_they_dial():
    assignment, n_taken = make_assignments(3), [0, 0, 0]
    for i in range(9):
        address = assignment[1].elsewhere(offer(f"a{i}"), n_taken[1])
        rank = 1 if address is None else int(address.removeprefix("host:"))
        assignment[rank].took(f"a{i}")
        n_taken[rank] += 1
    assert n_taken == [3, 3, 3]


def test_actors_that_ask_at_once_are_spread_before_any_has_joined():
    first, _ = make_assignments()
    assert [first.elsewhere(offer(""), 0) for _ in range(4)] == [None, "host:1", None, "host:1"]


def test_an_actor_is_sent_to_the_rank_that_had_it_however_many_are_there():
    first, second = make_assignments()
    second.took("a")
    first.note_loads([0, 50])
    second.note_loads([0, 50])
    assert first.elsewhere(offer("a"), 0) == "host:1"
    assert second.elsewhere(offer("a"), 50) is None
    assert second.elsewhere(offer("b"), 50) == "host:0"


def test_an_actor_that_comes_back_and_that_no_rank_knows_is_divided_anew_once_all_serve():
    texts: dict[str, str] = {}
    first, second = (RankAssignment(BoardInMemory(rank, 2, texts)) for rank in range(2))
    with pytest.raises(NotReadyError, match="a rank of this run that may know this actor is starting"):
        first.elsewhere(offer("known", incarnation=2), 0)
    second.took("known")
    first.serve_at(["host:0", "host:1"])
    assert first.elsewhere(offer("known", incarnation=2), 0) == "host:1"
    assert [first.elsewhere(offer(name, incarnation=1), 0) for name in "abcd"] == [None, "host:1", None, "host:1"]


def test_those_that_were_sent_count_until_they_have_arrived():
    first, _ = make_assignments()
    first.note_loads([2, 1])
    assert first.elsewhere(offer(""), 2) == "host:1"
    assert first.elsewhere(offer(""), 2) is None, "two each"
    first.note_loads([2, 2])
    assert first.elsewhere(offer(""), 3) == "host:1"


def test_evaluators_are_those_of_rank_0():
    first, second = make_assignments()
    assert second.elsewhere(offer("e", role=ActorRole.EVALUATE), 0) == "host:0"
    assert first.elsewhere(offer("e", role=ActorRole.EVALUATE), 100) is None


def test_a_rank_that_does_not_serve_yet_is_waited_for():
    assignment = RankAssignment(BoardInMemory(0, 2, {}))
    with pytest.raises(NotReadyError, match="rank 1 of this run, which takes this actor, is starting"):
        assignment.elsewhere(offer("a"), 5)


def test_without_the_board_no_rank_takes_an_actor():
    """Another rank may have its last rollouts in its log."""

    class Lost(BoardInMemory):
        def note(self, key: str, text: str) -> None:
            raise RankLostError("the store is gone; expected it; look at the log")

        def noted(self, key: str) -> str | None:
            raise RankLostError("the store is gone; expected it; look at the log")

    assignment = RankAssignment(Lost(0, 2, {}))
    with pytest.raises(RankLostError):
        assignment.took("a")
    with pytest.raises(RankLostError):
        assignment.elsewhere(offer("a"), 5)


def test_names_of_a_checkpoint_are_divided_among_another_number_of_ranks():
    names = [f"actor-{i}" for i in range(100)]
    ranks = [part_rank(name, 4) for name in names]
    assert ranks == [part_rank(name, 4) for name in names]
    assert set(ranks) == {0, 1, 2, 3}


@pytest.mark.parametrize("said", ["999", "2", "-1", "one", "1" * 5000])
def test_a_home_that_is_no_rank_is_none(said: str):
    texts = {"home/a": said}
    assignment = RankAssignment(BoardInMemory(0, 2, texts))
    assignment.serve_at(["host:0", "host:1"])
    assert assignment.elsewhere(offer("a"), 5) == "host:1", "as a new one"


def test_an_actor_is_sent_only_where_the_ranks_said_at_the_start_that_they_are():
    texts = {"home/a": "1", "address/1": "evil:1"}
    assignment = RankAssignment(BoardInMemory(0, 2, texts))
    with pytest.raises(NotReadyError, match="rank 1 of this run, which takes this actor, is starting"):
        assignment.elsewhere(offer("a"), 0)
    assignment.serve_at(["host:0", "host:1"])
    texts["address/1"] = "evil:1"
    assert assignment.elsewhere(offer("a"), 0) == "host:1"
