import copy
import gc
import itertools
import threading
import weakref

import pytest

from rollcast.learner.serving.assignment import OneLearner
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.services.errors import (
    ConfigurationError,
    LimitExceededError,
    NotReadyError,
    ProtocolMismatchError,
    RankLostError,
)
from rollcast.services.joining.join import JoinOffer
from rollcast.services.policies.policies import BUILT_IN_NETWORKS
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from rollcast.services.status.status import ActorState
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import CARTPOLE_LIKE, always, make_rollout
from tests.unit.learner.serving.intakes import Intake, offer, passes_nothing_on


def test_an_actor_whose_rollouts_would_be_above_the_limit_is_refused_at_join():
    intake = Intake(max_rollout_bytes=1000).intake
    intake.join(offer(n_envs=2))
    with pytest.raises(LimitExceededError, match=r"3 steps of 100 environments has \d+ bytes; expected at most 1000"):
        intake.join(offer(actor_id="b", n_envs=100))


def test_join_agrees_on_the_work():
    agreement = Intake().intake.join(offer())
    assert (agreement.slot, agreement.incarnation, agreement.n_rollout_steps) == (0, 1, 3)
    assert (agreement.env_seed, agreement.agent_seed) == (11, ActorSeeds(0).of(0, 1)[1])


def test_an_actor_steps_its_own_number_of_environments_or_the_learners():
    intake = Intake()
    assert intake.intake.join(offer(n_envs=3)).n_envs == 3
    assert intake.join_and_open(actor_id="b", process_nonce=2, n_envs=0).joined.rollout_shape.n_envs == 4
    assert [info.n_envs for info in intake.registry.infos()] == [3, 4]


def test_spaces_are_kept_once_and_not_for_each_actor():
    own = copy.deepcopy(CARTPOLE_LIKE)
    of_actor = weakref.ref(own[FLAT_SUBSTEP].observation)
    intake = Intake()
    intake.join_and_open(spaces=own)
    del own
    gc.collect()
    assert of_actor() is None


class AlwaysElsewhere(OneLearner):
    def elsewhere(self, offer: JoinOffer, n_taken: int) -> str:
        return "node7:50052"


def test_the_first_actor_that_reaches_nobody_where_it_was_sent_is_logged_with_what_helps(
    caplog: pytest.LogCaptureFixture,
):
    intake = Intake(assignment=AlwaysElsewhere()).intake
    intake.join(offer(actor_id="of-no-redirects", process_nonce=7))
    for nonce, name in enumerate("ab", 1):
        assert intake.join(offer(actor_id=name, process_nonce=nonce, follows_redirect=True)).learner_address
    assert not caplog.records
    for nonce, name in enumerate("ab", 1):
        intake.join(offer(actor_id=name, process_nonce=nonce))
    (record,) = caplog.records
    assert record.getMessage().startswith("actor 'a' was sent to node7:50052, does not reach it, and stays here; ")
    assert "--advertised-host" in record.getMessage()


class Lost(OneLearner):
    def elsewhere(self, offer: JoinOffer, n_taken: int) -> str | None:
        raise RankLostError("rank 0 is gone")


def test_a_rank_that_has_lost_the_others_takes_no_actor():
    """Another rank may have the actor's last rollouts in its log: both would learn from them after a restart."""
    intake = Intake(assignment=Lost())
    with pytest.raises(NotReadyError, match="actor 'a' cannot join: rank 0 is gone; try again with backoff"):
        intake.intake.join(offer(follows_redirect=True))
    assert not intake.registry.infos()


def test_every_learner_is_another():
    intake = Intake()
    nonces = [intake.intake.join(offer(actor_id=name)).learner_nonce for name in "ab"]
    assert nonces[0] == nonces[1] != 0
    assert Intake().intake.join(offer()).learner_nonce != nonces[0]


def test_who_asks_is_told_for_how_long_the_newest_stream_has_been_awaiting_what_comes_next():
    intake = Intake()
    old = intake.join_and_open()
    assert intake.intake.join(offer()).awaiting_s == 0
    old.awaits_message(True)
    wait_until(lambda: intake.intake.join(offer()).awaiting_s > 0.05, "some time")
    new = intake.join_and_open()
    assert intake.intake.join(offer()).awaiting_s == 0, "the old stream does not count"
    new.awaits_message(True)
    old.close(clean=False)
    wait_until(lambda: intake.intake.join(offer()).awaiting_s > 0.05, "some time")
    new.awaits_message(False)
    assert intake.intake.join(offer()).awaiting_s == 0


@pytest.mark.parametrize(
    ("trained", "started_with", "fits"),
    [
        *((network, "auto", True) for network in BUILT_IN_NETWORKS),
        ("mlp", "mlp", True),
        ("mlp", "nature_cnn", False),
        ("mine:net", "mine:net", True),
        ("mine:net", "auto", False),
        ("auto", "mine:net", False),
    ],
)
def test_an_actor_of_auto_plays_every_network_that_needs_no_import(trained: str, started_with: str, fits: bool):
    intake = Intake(network=trained).intake
    if fits:
        assert intake.join(offer(network=started_with)).incarnation == 1
    else:
        with pytest.raises(
            ProtocolMismatchError, match=f"--network '{started_with}', and the learner trains '{trained}'"
        ):
            intake.join(offer(network=started_with))


def test_actors_in_step_do_not_play_by_the_clock():
    Intake().intake.join(offer(plays_by_clock=True))
    intake = Intake(rule=CreditRule(in_step=True)).intake
    with pytest.raises(ProtocolMismatchError, match=r"has --inference-address or .* this learner has --deterministic"):
        intake.join(offer(n_envs=4, plays_by_clock=True))
    intake.join(offer(n_envs=4))


def test_a_stream_that_does_not_give_up_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollcast.learner.serving.intake._TAKE_OVER_S", 0.05)
    intake = Intake()
    old, (entered, goes_on) = intake.join_and_open(), intake.refuse_late()
    passing_on = threading.Thread(target=passes_nothing_on, args=(old,))
    passing_on.start()
    assert entered.wait(DEADLINE_S)
    with pytest.raises(NotReadyError, match="still delivers a rollout"):
        intake.join_and_open()
    goes_on.set()
    passing_on.join(DEADLINE_S)
    del intake.queue.put
    assert intake.registry.infos()[0].state is ActorState.LOST
    assert intake.join_and_open().accept(make_rollout(sequence=1), is_active=always).acknowledged_sequence == 1


def test_same_run_seed_gives_same_seeds():
    assert ActorSeeds(7).of(3, 2) == ActorSeeds(7).of(3, 2)
    assert ActorSeeds(7).of(3, 2) != ActorSeeds(8).of(3, 2)


def test_slots_incarnations_and_purposes_have_seeds_of_their_own():
    seeds = [
        seed
        for slot, incarnation in itertools.product(range(5), range(1, 4))
        for seed in ActorSeeds(0).of(slot, incarnation)
    ]
    assert len(set(seeds)) == 5 * 3 * 2


def test_given_seeds_are_for_the_first_incarnation_only():
    seeds = ActorSeeds(0, env_seeds=(11, 12), agent_seeds=(21, 22))
    assert seeds.of(1, 1) == (12, 22)
    assert seeds.of(1, 2) == ActorSeeds(0).of(1, 2)


def test_slots_beyond_the_given_seeds_have_derived_ones():
    assert ActorSeeds(0, env_seeds=(11,)).of(1, 1) == ActorSeeds(0).of(1, 1)


def test_fixed_number_of_actors_takes_one_seed_each_or_none():
    assert ActorSeeds.for_actors(3, 2, env_seeds=[5, 6], agent_seeds=None) == ActorSeeds(3, (5, 6), ())
    with pytest.raises(ConfigurationError, match="actor_env_seeds has 1 entries; expected n_actors = 2, one each"):
        ActorSeeds.for_actors(3, 2, env_seeds=[5], agent_seeds=None)
    with pytest.raises(ConfigurationError, match="actor_agent_seeds has 3 entries"):
        ActorSeeds.for_actors(3, 2, env_seeds=None, agent_seeds=[1, 2, 3])
