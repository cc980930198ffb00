import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from rollcast.actor.policies.exploration import EPSILONS
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.ranks.equal_policies import policy_digest
from rollcast.learner.ranks.ranks import ONE_RANK, Ranks
from rollcast.learner.ranks.rounds import MAX_RETURNS, RankRounds, RankState, Round
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError, RankLostError, RollcastError
from tests.integration.learner_fakes import offer
from tests.processes import DEADLINE_S
from tests.unit.learner.checkpoints.test_store import info
from tests.unit.learner.ranks.boards import AtTable, Table


def agreed(*states: RankState) -> Round:
    """Returns what the ranks agree on, which is the same for each."""
    table = Table(len(states))
    with ThreadPoolExecutor(len(states)) as ranks:
        rounds = [ranks.submit(RankRounds(AtTable(table, i)).agree, state) for i, state in enumerate(states)]
        first, *others = [of_rank.result(DEADLINE_S) for of_rank in rounds]
    assert all(other == first for other in others)
    return first


def test_an_update_needs_one_batch_and_has_the_steps_of_all():
    nothing = agreed(RankState(), RankState())
    assert not nothing.has_batch
    some = agreed(RankState(env_steps=0), RankState(has_batch=True, env_steps=2**31, n_actors=3))
    assert some.has_batch
    assert some.env_steps == 2**31
    assert some.n_actors == [0, 3]


def test_any_rank_pauses_stops_and_saves_but_only_rank_0_ends():
    every = agreed(RankState(stops=1), RankState(is_paused=True, checkpoint=True, stops=2, ends=True))
    assert every.is_paused
    assert every.checkpoint
    assert every.stops == 2
    assert not every.ends
    assert agreed(RankState(ends=True), RankState()).ends


def test_episodes_are_those_of_all_ranks_and_of_many_the_last_ones_have_their_returns():
    few = agreed(RankState(n_episodes=2, returns=(1.5, -2.0)), RankState(), RankState(n_episodes=1, returns=(7.0,)))
    assert few.n_episodes == 3
    assert few.returns == (1.5, -2.0, 7.0)
    values = [float(i) for i in range(250)]
    many = agreed(RankState(n_episodes=250, returns=values), RankState(n_episodes=1, returns=(0.5,)))
    assert many.n_episodes == 251
    assert many.returns == (*values[-MAX_RETURNS:], 0.5)


def test_importance_weights_have_one_largest():
    assert agreed(RankState(largest_weight=0.5), RankState(largest_weight=0.75)).largest_weight == 0.75


@pytest.mark.parametrize(
    ("digests", "message"),
    [((7, 7, 8), "rank 2 of 3 no longer has the policy of rank 0"), ((1, 2, 3), "ranks 1, 2 of 3 no longer have")],
)
def test_policies_that_differ_are_refused_with_their_ranks(digests: Sequence[int], message: str):
    with pytest.raises(RollcastError, match=message):
        agreed(*(RankState(digest=digest) for digest in digests))


def test_a_digest_is_that_of_the_weights_and_a_float64_holds_it():
    state = {"w": np.arange(4, dtype=np.float32), EPSILONS: np.zeros(2, np.float32)}
    digest = policy_digest(state)
    assert int(float(digest)) == digest > 0
    assert digest == policy_digest({**state, EPSILONS: np.ones(2, np.float32)}), "exploration differs between ranks"
    assert digest != policy_digest({**state, "w": np.array([0, 1, 2, 3.0000002], np.float32)})


def of_two(rank: int, table: Table, texts: dict[str, str] | None = None) -> Ranks:
    return Ranks(
        AtTable(table, rank, texts),
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
    assert ONE_RANK.broadcast_text("STEPS", "itself") == "STEPS"
    ONE_RANK.join(refuse)
    assert ONE_RANK.begins_checkpoint(is_writing=True)
    assert ONE_RANK.goes_on(is_done=False, end=0)
    assert not ONE_RANK.goes_on(is_done=True, end=0), "stopped, and not at its end"
    with pytest.raises(RankLostError, match="there is no rank 1: this learner is alone"):
        ONE_RANK.group.told("done", 1, what="rank 1")


def test_several_ranks_go_on_until_all_have_agreed_and_rank_0_says_when():
    table = Table(2)
    first, second = of_two(0, table), of_two(1, table)
    for ranks in (first, second):
        assert ranks.goes_on(is_done=True, end=2)
        assert not ranks.begins_checkpoint(is_writing=False), "it asks for one"
    assert (first.end, second.end) == (2, 0)
    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(lambda ranks, text: ranks.broadcast_text(text, "rank 0"), (first, second), ("STEPS", ""))
        assert list(ends) == ["STEPS", "STEPS"]
    with pytest.raises(ConfigurationError, match="does not average its gradients"):
        second.join(refuse)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_folder_of_the_run_is_that_of_rank_0_whatever_the_store_tells(is_resumed: bool, tmp_path: Path):
    run, elsewhere = (RunDirectory.create(tmp_path, name) for name in ("lauf-ü", "elsewhere"))
    checkpoints = [CheckpointStore(folder.checkpoints_path, keep=1) for folder in (run, elsewhere)]
    own, other = [(store.commit(store.stage(7), info(7)), info(7)) for store in checkpoints]
    checkpoint = own if is_resumed else None
    told = json.dumps({"run": str(elsewhere.path), "checkpoint": str(other[0])})
    table = Table(2)
    first, second = (of_two(rank, table, {"run/0": told, "done/0": "STEPS"}) for rank in range(2))
    with ThreadPoolExecutor(2) as pool:
        telling = pool.submit(first.tell_run, run, checkpoint)
        found, found_checkpoint = pool.submit(second.told_run).result(DEADLINE_S)
        telling.result(DEADLINE_S)
    assert found.path == run.path
    assert found_checkpoint == checkpoint


def test_ranks_that_share_no_folder_of_the_run_are_told_so(tmp_path: Path):
    table = Table(2)
    with ThreadPoolExecutor(2) as pool:
        telling = pool.submit(of_two(0, table).tell_run, RunDirectory(tmp_path / "run"), None)
        with pytest.raises(ConfigurationError, match="run', which does not exist for rank 1; expected a folder on a"):
            pool.submit(of_two(1, table).told_run).result(DEADLINE_S)
        telling.result(DEADLINE_S)


def test_actors_are_sent_to_the_addresses_of_the_ranks_whatever_the_store_tells():
    table, texts = Table(2), {f"{name}/{rank}": "attacker:1" for name in ("address", "addresses") for rank in range(2)}
    every = [of_two(rank, table, texts) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        serving = [pool.submit(ranks.serve_at, f"127.0.0.{rank}:5005{rank}") for rank, ranks in enumerate(every)]
        for served in serving:
            served.result(DEADLINE_S)
    texts["home/a"] = "1"
    assert every[0].assignment.elsewhere(offer("a"), 0) == "127.0.0.1:50051"
    texts["home/a"] = "0"
    assert every[1].assignment.elsewhere(offer("a"), 0) == "127.0.0.0:50050"
