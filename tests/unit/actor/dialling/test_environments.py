import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.dialling.batch_rule import BatchRule
from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.services.environments.dialled import AgentState, AgentTurn, DialledTurn, Farewell
from rollcast.services.errors import (
    InvalidSpaceError,
    InvalidTurnError,
    NameTakenError,
    NotReadyError,
    SpacesMismatchError,
    ThrottledError,
)
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.dialled_clients import FakeClient
from tests.play_messages import FLAT, TEAM
from tests.processes import DEADLINE_S

ALL = BatchRule()


def environments_of(n_places=2, **options):
    environments = DialledEnvironments(address="here", **options)
    environments.agree(n_places)
    environments.begin(range(100, 100 + n_places))
    return environments


def act(environments, *places, version=1):
    environments.act({place: [np.int64(1)] for place in places}, policy_version=version)


def test_the_log_names_once_who_chooses_in_place_of_the_policy(caplog):
    environments = environments_of()
    client = FakeClient(environments)
    with caplog.at_level("INFO", "rollcast.actor.dialling.environments"):
        for chosen_by in ("a human", "", "a human", *map(str, range(50))):
            agent = AgentTurn("0", 0, AgentState.REWARDED, {}, 0.0, np.array(1), chosen_by)
            environments.take(client, [DialledTurn(0, (agent,))])
    assert caplog.messages[0] == "client 'game': a human chooses actions in place of the policy"
    assert len(caplog.messages) == 16, "and not for ever"


class TestPlaces:
    def test_are_taken_in_the_order_of_coming(self):
        environments = environments_of(3)
        first, second = FakeClient(environments, "a", n_envs=2), FakeClient(environments, "b")
        assert (first.seeds, second.seeds) == ([100, 101], [102])
        assert (environments.n_live, environments.n_clients) == (3, 2)

    def test_are_given_when_the_learner_has_said_how_many(self):
        environments = DialledEnvironments(address="here")
        client = FakeClient(environments)
        assert client.seeds is None
        assert environments.wait_for_spaces(lambda: True) == FLAT
        environments.agree(1)
        environments.begin([7])
        assert client.seeds == [7]

    def test_that_are_too_few_are_refused_by_the_options_name(self):
        environments = environments_of(2)
        FakeClient(environments, "a")
        with pytest.raises(ThrottledError, match=r"'b' has 2 environments, and 1 of .* 2 places .* --envs-per-actor"):
            FakeClient(environments, "b", n_envs=2)
        FakeClient(environments, "b")

    def test_that_are_too_few_for_those_who_came_before(self):
        environments = DialledEnvironments(address="here")
        early, late = FakeClient(environments, "a", n_envs=2), FakeClient(environments, "b")
        environments.agree(2)
        environments.begin([1, 2])
        assert early.seeds == [1, 2]
        assert isinstance(late.end_reason, ThrottledError)

    def test_are_free_again_once_a_client_has_gone(self):
        environments = environments_of(1)
        seeds = []
        for _ in range(3):
            client = FakeClient(environments, "a")
            seeds += client.seeds
            client.leave()
        assert seeds[0] == 100
        assert len(set(seeds)) == 3, "who takes a place later has another seed"

    def test_are_given_anew_in_another_run(self):
        environments = environments_of(1)
        client = FakeClient(environments)
        environments.agree(2)
        environments.begin([5, 6])
        assert client.end_reason == Farewell(reason="another run begins: dial in again", training_ended=False)
        assert FakeClient(environments).seeds == [5]

    def test_are_not_given_between_two_runs(self):
        environments = environments_of(1)
        environments.agree(0)
        client = FakeClient(environments)
        assert (client.seeds, client.end_reason) == (None, None)
        assert environments.wait_for_clients(lambda: False)
        environments.agree(1)
        environments.begin([9])
        assert client.seeds == [9]


class TestRefusals:
    def test_a_second_client_of_one_name(self):
        environments = environments_of()
        FakeClient(environments, "a")
        with pytest.raises(NameTakenError, match="a client 'a' plays here already"):
            FakeClient(environments, "a")

    def test_other_spaces_than_those_of_the_first(self):
        environments = environments_of()
        FakeClient(environments, "a")
        with pytest.raises(SpacesMismatchError, match=r"client 'a', the first, has \['0'\], client 'b' has"):
            FakeClient(environments, "b", spaces=TEAM)

    def test_an_action_mask_of_a_wrong_space(self):
        masked = spaces.Dict({"action_mask": spaces.Box(0, 1, (5,), np.int8), "seen": spaces.Discrete(2)})
        with pytest.raises(InvalidSpaceError, match="action_mask"):
            FakeClient(environments_of(), spaces={"0": SubstepSpaces(observation=masked, action=spaces.Discrete(3))})

    def test_a_mask_that_allows_nothing_while_the_agent_acts(self):
        masked = spaces.Dict({"action_mask": spaces.Box(0, 1, (3,), np.int8), "seen": spaces.Discrete(2)})
        of_mask = {"0": SubstepSpaces(observation=masked, action=spaces.Discrete(3))}
        client = FakeClient(environments_of(), spaces=of_mask)
        seen = {"action_mask": np.zeros(3, np.int8), "seen": np.array(1)}
        with pytest.raises(
            InvalidTurnError, match=r"client 'game', environment 0, .* its 'action_mask' allows no action"
        ):
            client.turn(observation=seen)

    def test_everybody_after_the_end(self):
        environments = environments_of()
        before = FakeClient(environments, "a")
        farewell = Farewell(reason="training has ended", training_ended=True)
        environments.end(farewell)
        assert before.end_reason == farewell
        assert FakeClient(environments, "b").end_reason == farewell

    def test_everybody_after_an_error_of_the_learner(self):
        environments = environments_of()
        environments.end(SpacesMismatchError("the learner has others"))
        with pytest.raises(SpacesMismatchError, match="the learner has others"):
            FakeClient(environments)


class TestBatches:
    def test_close_when_all_live_environments_ask(self, monkeypatch):
        monkeypatch.setattr("rollcast.actor.dialling.batch_rule.LONGEST_WAIT_S", math.inf)
        environments = environments_of(3)
        first, second = FakeClient(environments, "a"), FakeClient(environments, "b")
        first.turn()
        assert not environments.wait(ALL, forward_s=math.inf, until=0.0)
        second.turn()
        assert environments.wait(ALL)

    def test_close_by_the_deadline_of_the_oldest_request(self):
        environments = environments_of()
        first, _ = FakeClient(environments, "a"), FakeClient(environments, "b")
        first.turn()
        assert environments.wait(ALL, forward_s=0.0)

    def test_do_not_wait_for_those_that_are_held(self):
        environments = environments_of()
        first, second = FakeClient(environments, "a"), FakeClient(environments, "b")
        first.turn()
        environments.hold([0])
        assert not environments.wait(ALL, until=0.0)
        second.turn()
        assert environments.wait(ALL)

    def test_wake_the_thread_that_waits(self):
        environments = environments_of(1)
        client = FakeClient(environments)
        waiting = threading.Thread(target=environments.wait, args=(ALL,))
        waiting.start()
        client.turn()
        waiting.join(DEADLINE_S)
        assert not waiting.is_alive()

    def test_stop_waiting_when_a_client_has_left(self):
        environments = environments_of()
        client, _ = FakeClient(environments, "a"), FakeClient(environments, "b")
        client.turn()
        environments.news()
        act(environments, 0)
        client.leave()
        assert not environments.wait(ALL)


class TestTheServersThread:
    """It answers batches while the acting thread waits. Here the test's thread is the server's."""

    @pytest.fixture
    def looks(self):
        """The times for which looks are arranged."""
        return []

    @pytest.fixture
    def clock(self, monkeypatch):
        clock = SimpleNamespace(now=1000.0)
        monkeypatch.setattr("rollcast.actor.dialling.environments.time", SimpleNamespace(monotonic=lambda: clock.now))
        return clock

    @pytest.fixture
    def wait(self, looks, monkeypatch):
        """Has another thread wait until it is woken; returns the future of what the wait returns."""
        monkeypatch.setattr("rollcast.actor.dialling.environments.LOOK_S", 10 * DEADLINE_S)
        is_over, begun = threading.Event(), []
        with ThreadPoolExecutor(1) as threads:

            def begin(environments, answer, forward_s=0.0005):
                begun.append(environments)
                environments.attach(looks.append)
                waits = threading.Event()

                def is_active():
                    waits.set()
                    return not is_over.is_set()

                future = threads.submit(environments.wait, ALL, forward_s=forward_s, is_active=is_active, answer=answer)
                assert waits.wait(DEADLINE_S)
                return future

            yield begin
            is_over.set()
            for environments in begun:
                environments.close()  # wakes it after a failed test

    def test_answers_until_the_other_must_decide(self, wait):
        environments = environments_of(1)
        client, passes, answered_in = FakeClient(environments), iter([0.0005, 0.0001, None]), []

        def answer():
            answered_in.append(threading.get_ident())
            environments.news()
            act(environments, 0)
            return next(passes)

        returned = wait(environments, answer)
        for n_answers in (1, 2, 3):
            client.turn()
            assert len(client.answers) == n_answers
        assert returned.result(DEADLINE_S) is False
        assert set(answered_in) == {threading.get_ident()}

    def test_closes_a_batch_at_its_deadline(self, wait, looks, clock):
        environments = environments_of()
        first, _, answered = FakeClient(environments, "a"), FakeClient(environments, "b"), []
        returned = wait(environments, lambda: answered.append(clock.now))
        first.turn()
        assert looks == [1000.0005]
        environments.look()
        environments.look()
        assert (looks[2:], answered) == ([1000.0005], [])
        clock.now = 1000.0006
        environments.look()
        assert answered == [1000.0006]
        assert returned.result(DEADLINE_S) is False

    def test_closes_a_full_batch_at_once(self, wait, clock):
        environments = environments_of()
        first, second, answered = FakeClient(environments, "a"), FakeClient(environments, "b"), []
        returned = wait(environments, lambda: answered.append(clock.now))
        first.turn()
        second.turn()
        assert answered == [1000.0]
        assert returned.result(DEADLINE_S) is False

    def test_goes_on_reading_while_each_turn_of_its_loop_brings_a_request(self, wait, clock):
        environments = environments_of(9)
        clients, answered = [FakeClient(environments, name) for name in "abcdefghi"], []
        returned = wait(environments, lambda: answered.append(clock.now))
        for client in clients[:-1]:
            client.turn()
            clock.now += 0.0004
            environments.look()
            if answered:
                break
        assert answered == [pytest.approx(1000.002)]
        assert returned.result(DEADLINE_S) is False

    def test_knows_of_a_request_that_arrived_before_the_other_waited(self, wait, looks, clock):
        environments = environments_of()
        first, _ = FakeClient(environments, "a"), FakeClient(environments, "b")
        first.turn()
        returned = wait(environments, lambda: None)
        assert looks == [1000.0005]
        clock.now = looks[0]
        environments.look()
        assert returned.result(DEADLINE_S) is False

    @pytest.mark.parametrize("forward_s", [0.0, 0.01], ids=["none yet", "long"])
    def test_leaves_batches_to_the_other_if_the_last_pass_was(self, wait, forward_s):
        environments = environments_of(1)
        client = FakeClient(environments)
        returned = wait(environments, lambda: pytest.fail("the acting thread's"), forward_s)
        client.turn()
        assert returned.result(DEADLINE_S) is True

    def test_leaves_the_next_batch_to_the_other_after_a_long_pass(self, wait):
        environments = environments_of(1)
        client = FakeClient(environments)
        returned = wait(environments, lambda: 0.01)
        client.turn()
        assert returned.result(DEADLINE_S) is False

    def test_leaves_its_errors_to_the_other(self, wait):
        def fail():
            raise KeyError("of the policy")

        environments = environments_of(1)
        client = FakeClient(environments)
        returned = wait(environments, fail)
        client.turn()
        with pytest.raises(KeyError, match="of the policy"):
            returned.result(DEADLINE_S)


class TestNews:
    def test_have_the_end_of_an_episode_whose_client_left_then(self):
        environments = environments_of(1)
        gone = FakeClient(environments, "a")
        gone.turn()
        environments.news()
        act(environments, 0)
        gone.turn(AgentState.TERMINATED, 1.0)
        gone.turn()
        gone.leave()
        FakeClient(environments, "b").leave()
        FakeClient(environments, "c").turn()
        (news,) = environments.news()
        assert [list(turn.rewards.values()) for turn in news.last_turns] == [[1.0]]
        assert (news.has_left, len(news.turns)) == (True, 1)
        assert environments.news() == []

    def test_are_bounded_whatever_clients_do(self):
        environments = environments_of(1)
        for _ in range(100):
            client = FakeClient(environments)
            client.turn()
            client.leave()
        assert environments.news() == []


class TestActions:
    def test_do_not_go_to_another_one_that_has_the_place_now(self):
        environments = environments_of(1)
        gone = FakeClient(environments, "a")
        gone.turn()
        environments.news()
        gone.leave()
        next_one = FakeClient(environments, "b")
        next_one.turn()
        act(environments, 0)
        assert next_one.answers == gone.answers == []
        environments.news()
        act(environments, 0)
        assert len(next_one.answers) == 1


class TestStalls:
    def test_a_client_that_sends_no_turn_in_time_is_named_and_loses_its_places(self, caplog):
        environments = environments_of(2, stall_s=0.0)
        frozen = FakeClient(environments, "frozen", n_envs=2)
        frozen.turn()
        environments.news()
        act(environments, 0)
        assert not environments.wait(ALL)
        assert isinstance(frozen.end_reason, NotReadyError)
        assert "client 'frozen', environment 0: no turn arrived within 0 s" in caplog.text
        assert len(FakeClient(environments, "frozen", n_envs=2).seeds) == 2

    def test_a_slow_client_among_fast_ones_is_named_once_and_keeps_its_place(self, caplog, monkeypatch):
        monkeypatch.setattr("rollcast.actor.dialling.environments.LOOK_S", 0.0)
        monkeypatch.setattr("rollcast.actor.dialling.environments._SLOW_S", 0.0)
        environments = environments_of()
        slow, quick = FakeClient(environments, "slow"), FakeClient(environments, "quick")
        for _ in range(5):
            quick.turn()
            assert environments.wait(ALL, forward_s=0.0)
            environments.news()
            act(environments, 1)
        assert caplog.text.count("client 'slow' is slow: its environment 0 has sent no turn for") == 1
        assert "quick" not in caplog.text
        assert slow.end_reason is None

    def test_a_client_is_given_up_even_if_others_always_ask(self, monkeypatch):
        monkeypatch.setattr("rollcast.actor.dialling.environments.LOOK_S", 0.0)
        environments = environments_of(2, stall_s=0.0)
        frozen, quick = FakeClient(environments, "frozen"), FakeClient(environments, "quick")
        quick.turn()
        environments.wait(ALL)
        assert isinstance(frozen.end_reason, NotReadyError)
        assert quick.end_reason is None

    def test_a_client_that_waits_for_its_actions_does_not_stall(self):
        environments = environments_of(1, stall_s=0.0)
        client = FakeClient(environments)
        client.turn()
        environments.hold([0])
        assert not environments.wait(ALL, until=0.0)
        assert client.end_reason is None


def test_who_is_waited_for_is_said(caplog, monkeypatch):
    monkeypatch.setattr("rollcast.actor.dialling.environments._REPORT_EVERY_S", 0.0)
    monkeypatch.setattr("rollcast.actor.dialling.environments.LOOK_S", 0.01)
    caplog.set_level("INFO")
    environments = environments_of()
    asked = iter((True, True, False))
    assert not environments.wait_for_clients(lambda: next(asked))
    assert "waiting for environments to dial in at here" in caplog.text
    FakeClient(environments, "slow")
    asked = iter((True, True, False))
    environments.wait(ALL, is_active=lambda: next(asked))
    assert "waiting for turns of ['slow']" in caplog.text


def test_the_time_of_a_wait_for_clients_is_without_the_pause_of_the_learner_before_it(caplog, monkeypatch):
    now = 1000.0

    def passes(seconds):
        nonlocal now
        now += seconds
        return True

    monkeypatch.setattr("rollcast.actor.dialling.environments.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("rollcast.actor.dialling.environments.LOOK_S", 0.0)
    caplog.set_level("INFO")
    environments = environments_of(1)

    def wait(*seconds):
        """Waits, while so much time passes between two looks."""
        passing = iter(seconds)
        environments.wait(ALL, is_active=lambda: passes(step) if (step := next(passing, None)) else False)

    for leaves_at in (100, 300):  # of the 300 s for which the learner is paused
        client = FakeClient(environments)
        client.turn()
        assert environments.wait(ALL)
        environments.news()
        act(environments, 0)
        passes(leaves_at)
        client.leave()
        passes(300 - leaves_at)
        wait()  # the client has left in mid-episode
        environments.news()
        wait(6, 6)
        passes(50)
        wait(11)
    assert caplog.messages == [
        f"waiting for environments to dial in at here, {seconds} s so far" for seconds in (12, 23) * 2
    ]
