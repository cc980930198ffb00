"""A learner that dies, and the one that goes on: what was acknowledged is learnt from once."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.durable.records import N_MARKER
from rollcast.learner.durable.rollouts import DurableRollouts, refuse_leftovers
from rollcast.learner.experience.experience import FreshExperience
from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.ranks.ranks import Ranks
from rollcast.services.errors import ConfigurationError, NotReadyError
from rollcast.services.policies.policies import PolicySpec
from tests.dialled import DialledActor
from tests.rollouts import CARTPOLE_LIKE
from tests.unit.learner.checkpoints.resumable_runs import settings_for, train
from tests.unit.learner.durable.logs import HEADER, write_log
from tests.unit.learner.ranks.boards import AtTable, Table

pytestmark = pytest.mark.slow

BATCH = 3


class Learner:
    """A learner whose actors are called by hand.

    Args:
        folder: Of its log.
        state: Of the checkpoint that it goes on from.
    """

    entered: ClassVar[list["Learner"]] = []

    def __init__(self, folder: Path, state: Any = None, **options: Any) -> None:
        policy = TorchPolicy(CARTPOLE_LIKE, PolicySpec(hidden_sizes=(4,)))
        self.durable = DurableRollouts(folder, max_bytes=1 << 30, ask_for_checkpoint=lambda: None)
        serving = ServingOptions(durable=self.durable, addresses=("127.0.0.1:0",), **options)
        self.actors = RemoteDistributedActors(policy, 3, BATCH, 4.0, envs_per_actor=2, serving=serving)
        if state is not None:
            self.actors.load_state(json.loads(json.dumps(state)))
        self.actors.start()
        self.source = FreshExperience(self.actors)
        self.dialled: list[DialledActor] = []
        Learner.entered.append(self)

    def dial(self, actor_id: str = "a", **offered: Any) -> DialledActor:
        self.dialled.append(DialledActor(self.actors.addresses[0], actor_id, **offered))
        return self.dialled[-1]

    def learn(self, *, to_its_end: bool = True) -> list[tuple[str, int]]:
        """Collects a batch, and learns from it; whose trajectories it has."""
        batch = self.source.next("cpu").batch
        if to_its_end:
            self.source.learnt(batch, None)
        return [
            (name.actor_id, name.sequence) for name in self.actors.batch_names for _ in range(name.start, name.stop)
        ]

    def take_all(self) -> list[tuple[int, int, int]]:
        pieces = []
        while (piece := self.actors.poll_slice(9)) is not None:
            self.actors.covered([piece.name])
            pieces.append((piece.rollout.sequence, piece.start, piece.stop))
        return pieces


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Logs that die do so without a word: their threads end here."""
    yield
    while Learner.entered:
        learner = Learner.entered.pop()
        for actor in learner.dialled:
            actor.close()
        learner.actors.cancel_waits()
        learner.actors.stop()
        learner.durable.close()


def test_what_was_acknowledged_and_not_learnt_is_learnt_once(tmp_path: Path):
    killed = Learner(tmp_path)
    killed.dial().send(1, 2, 3, 4)
    # of the second, one trajectory is in the batch
    assert killed.learn() == [("a", 1), ("a", 1), ("a", 2)]
    state = killed.actors.state()
    assert killed.learn() == [("a", 2), ("a", 3), ("a", 3)], "in vain"
    resumed = Learner(tmp_path, state)
    stream = resumed.dial(incarnation=1, acknowledged_sequence=3)
    assert stream.progress.acknowledged_sequence == 4, "though the answer never arrived"
    stream.send(5)
    assert resumed.take_all() == [(2, 1, 2), (3, 0, 2), (4, 0, 2), (5, 0, 2)]
    assert resumed.actors.stale_trajectories == 0


def test_a_batch_that_was_collected_and_not_learnt_from_is_collected_again(tmp_path: Path):
    killed = Learner(tmp_path)
    killed.dial().send(1, 2)
    killed.learn(to_its_end=False)
    resumed = Learner(tmp_path, killed.actors.state())
    assert resumed.take_all() == [(1, 0, 2), (2, 0, 2)]


def test_before_the_first_checkpoint_everything_is_handed_out_and_actors_are_known(tmp_path: Path):
    killed = Learner(tmp_path)
    killed.dial("b", process_nonce=2, incarnation=3).send(1, actor_id="b", incarnation=3, policy_version=7)
    killed.dial().send(1, 2)
    resumed = Learner(tmp_path)
    assert resumed.actors.policy_version == 8, "lags are above 0"
    again = resumed.dial()
    assert (again.progress.acknowledged_sequence, again.agreement.slot) == (2, 1)
    assert resumed.dial("b", process_nonce=2, incarnation=3).progress.acknowledged_sequence == 1
    other = resumed.dial("b", process_nonce=9)
    assert (other.agreement.incarnation, other.agreement.slot, other.progress.acknowledged_sequence) == (4, 0, 0)
    assert [piece[0] for piece in resumed.take_all()] == [1, 1, 2]


def test_a_learner_that_is_killed_again_while_it_hands_out_goes_on_there(tmp_path: Path):
    killed = Learner(tmp_path)
    killed.dial().send(1, 2, 3)
    again = Learner(tmp_path, killed.actors.state())
    assert again.learn() == [("a", 1), ("a", 1), ("a", 2)]
    state = again.actors.state()
    again.dial().send(4)
    for _ in range(2):
        resumed = Learner(tmp_path, state)
        assert resumed.take_all() == [(2, 1, 2), (3, 0, 2), (4, 0, 2)]


def test_a_rollout_by_a_policy_that_was_lost_with_the_learner_is_kept(tmp_path: Path):
    killed = Learner(tmp_path)
    killed.dial().send(1, policy_version=3)
    resumed = Learner(tmp_path, killed.actors.state())
    resumed.dial().send(2, policy_version=6)
    assert resumed.take_all() == [(1, 0, 2), (2, 0, 2)]


def test_the_limit_of_the_lag_holds_for_what_is_recovered(tmp_path: Path):
    killed = Learner(tmp_path)
    killed.dial().send(1, policy_version=1)
    killed.dial("b", process_nonce=2).send(1, actor_id="b", policy_version=9)
    resumed = Learner(tmp_path, killed.actors.state(), max_policy_lag=5)
    assert resumed.take_all() == []
    piece = resumed.actors.poll_slice(9)
    assert piece is not None
    assert piece.rollout.actor_id == "b"
    assert resumed.actors.stale_trajectories == 2


def test_what_no_room_was_found_for_comes_again_and_is_learnt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    learner = Learner(tmp_path)
    stream = learner.dial()
    stream.send(1)
    with monkeypatch.context() as no_room:
        no_room.setattr(RolloutQueue, "put", lambda queue, rollout, **options: False)
        with pytest.raises(NotReadyError, match="was not taken"):
            stream.send(2)
    state = learner.actors.state()
    resumed = Learner(tmp_path, state)
    stream = resumed.dial(incarnation=1, acknowledged_sequence=1)
    assert stream.progress.acknowledged_sequence == 1, "it was not acknowledged"
    stream.send(2)
    assert resumed.take_all() == [(1, 0, 2), (2, 0, 2)]


def test_after_a_clean_end_the_log_has_what_was_not_learnt(tmp_path: Path):
    stopped = Learner(tmp_path)
    stopped.dial().send(1, 2)
    stopped.actors.stop()
    resumed = Learner(tmp_path, stopped.actors.state())
    assert resumed.take_all() == [(1, 0, 2), (2, 0, 2)]


def test_what_a_damaged_checkpoint_had_alone_is_said_to_be_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    learner = Learner(tmp_path)
    learner.dial().send(1, 2)
    learner.actors.stop()
    for path in tmp_path.glob("*.log"):
        path.unlink()
    state = {"policy_version": 1, "actors": {}, "log": {"position": 0, "open_runs": [], "open_spans": {}}}
    Learner(tmp_path, state)
    assert not caplog.records, "a log that is empty says nothing of what was in it"
    state["log"]["position"] = 5
    resumed = Learner(tmp_path, state)
    resumed.dial().send(1)
    resumed.actors.stop()
    with caplog.at_level(logging.ERROR):
        Learner(tmp_path)
    assert "the 5 acknowledged rollouts between them cannot be recovered" in caplog.text


def test_a_run_does_not_forget_its_log(tmp_path: Path):
    refuse_leftovers(tmp_path / "none", HEADER, None)
    learner = Learner(tmp_path / "log")
    learner.dial().send(1)
    with pytest.raises(ConfigurationError, match="has 1 acknowledged rollouts that no checkpoint has"):
        refuse_leftovers(tmp_path / "log", HEADER, None)
    assert learner.take_all() == [(1, 0, 2)]
    refuse_leftovers(tmp_path / "log", HEADER, learner.durable.state())
    assert not (tmp_path / "log").exists()


def test_a_log_that_cannot_be_read_is_said_with_what_to_do(tmp_path: Path):
    # a folder in a segment's place can be opened, and not read
    (tmp_path / f"{1:010d}-{bytes(N_MARKER).hex()}.log").mkdir()
    durable = DurableRollouts(tmp_path, max_bytes=1 << 30, ask_for_checkpoint=lambda: None)
    with pytest.raises(ConfigurationError, match=r"--durable: .* cannot be read: Is a directory; expected a folder"):
        durable.open(HEADER, None)
    with pytest.raises(
        ConfigurationError, match=r"--no-durable: .* cannot be read: Is a directory; .* remove the folder"
    ):
        refuse_leftovers(tmp_path, HEADER, None)


def test_nobody_is_promised_what_cannot_be_kept(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="--durable with --actor-kind sequential; expected subprocess"):
        train(settings_for(tmp_path / "run", "impala", "--durable"))
    assert not (tmp_path / "run").exists()


def test_ranks_go_on_with_one_policy_version_whatever_their_logs_have(tmp_path: Path):
    """A rank may have published, and played with, more versions than another when both are killed."""
    table = Table(2)
    for rank in range(2):
        write_log(tmp_path / str(rank), [1], policy_version=9 if rank else 4)

    def serve(rank: int) -> int:
        ranks = Ranks(
            AtTable(table, rank),
            torch.device("cpu"),
            n_local_ranks=2,
            data_timeout_s=1.0,
            check_updates=1,
            advertised_host="",
        )
        return Learner(tmp_path / str(rank), newest_version=ranks.newest_version).actors.policy_version

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(serve, range(2))) == [10, 10]
