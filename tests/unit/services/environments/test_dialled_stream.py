import math

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.services.environments.codec import EpisodeValueNames, actions_to_bytes
from rollcast.services.environments.dialled import AgentState
from rollcast.services.environments.dialled_stream import DialledStream
from rollcast.services.errors import (
    InvalidInputError,
    InvalidSpaceError,
    InvalidTensorError,
    InvalidTurnError,
    LimitExceededError,
    MissingMessageError,
    ProtocolMismatchError,
)
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.v1 import environment_pb2
from tests.play_messages import (
    FLAT,
    GUNNER_SEES,
    INTERRUPTED,
    REWARDED,
    RUNNING,
    SEEN,
    TEAM,
    TERMINATED,
    agent,
    hello,
    turn,
    turns,
)


def stream_of(offered=FLAT, n_envs=1, names=None):
    stream = DialledStream(names or EpisodeValueNames())
    stream.hello(hello(offered=offered, n_envs=n_envs))
    stream.named("game")
    return stream


def walker(number, state=RUNNING, reward=0.0):
    return agent(state, SEEN, reward, number=number)


def gunner(state=RUNNING, reward=0.0):
    return agent(state, GUNNER_SEES, reward, substep=1)


def acting(offered=FLAT, *agents, **options):
    """Returns a stream whose first turn has been answered."""
    stream = stream_of(offered, **options)
    stream.turns(turns(turn(*agents)))
    stream.answer(0)
    return stream


class TestHello:
    def test_tells_name_spaces_and_environments(self):
        told = DialledStream(EpisodeValueNames()).hello(hello(offered=TEAM, n_envs=3, software="engine 1.2"))
        assert (told.client, told.n_envs, told.software) == ("game", 3, "engine 1.2")
        assert told.spaces == TEAM

    def test_without_a_number_means_one_environment(self):
        assert DialledStream(EpisodeValueNames()).hello(hello(n_envs=0)).n_envs == 1

    @pytest.mark.parametrize(("first", "said"), [(turns(turn()), "turns"), (environment_pb2.PlayRequest(), "empty")])
    def test_must_come_first(self, first, said):
        with pytest.raises(MissingMessageError, match=f"the first message is {said}; expected hello"):
            DialledStream(EpisodeValueNames()).hello(first)

    def test_must_not_come_again_with_other_spaces(self):
        stream = stream_of()
        with pytest.raises(InvalidTurnError, match=r"client 'game' sent hello after hello; .* to change spaces"):
            stream.turns(hello(offered=TEAM))

    @pytest.mark.parametrize("version", [0, 2])
    def test_of_another_version_is_refused(self, version):
        with pytest.raises(ProtocolMismatchError, match=f"speaks version {version} .* expected 1"):
            DialledStream(EpisodeValueNames()).hello(hello(protocol=version))

    @pytest.mark.parametrize(
        ("fields", "error", "said"),
        [
            ({"client": "x" * 129}, InvalidInputError, "expected at most 128 bytes"),
            ({"client": "a\nb"}, InvalidInputError, "printable"),
            ({"n_envs": 70_000}, InvalidInputError, "has 70000 environments; expected at most 65536"),
            ({"substeps": []}, InvalidSpaceError, "there is no substep"),
        ],
    )
    def test_with_an_invalid_field_is_refused(self, fields, error, said):
        with pytest.raises(error, match=said):
            DialledStream(EpisodeValueNames()).hello(hello(**fields))

    def test_with_actions_that_no_policy_has_is_refused(self):
        offered = {"0": SubstepSpaces(observation=spaces.Discrete(2), action=spaces.Box(0, 9, (1,), np.int32))}
        with pytest.raises(InvalidSpaceError, match="substep '0' of the client 'game'"):
            DialledStream(EpisodeValueNames()).hello(hello(offered=offered))


class TestTurns:
    def test_bring_what_agents_see_and_earn(self):
        stream = stream_of(TEAM)
        (told,) = stream.turns(turns(turn(walker(1, reward=2.5), gunner())))
        first, second = told.agents
        assert (first.substep_key, first.agent_index, first.state) == ("walker", 1, AgentState.RUNNING)
        assert first.reward == 2.5
        np.testing.assert_array_equal(first.observation[""], np.array([0.5, -0.5], np.float32))
        np.testing.assert_array_equal(second.observation["view"], [[0, 1], [2, 3]])
        assert (second.observation["ammo"], second.observation["ammo"].dtype) == (3, np.int64)
        assert told.n_running == 2

    def test_get_an_action_for_each_running_agent_in_their_order(self):
        stream = stream_of(TEAM)
        stream.turns(turns(turn(gunner(), walker(1), walker(0, TERMINATED))))
        assert stream.answer(0) == (("gunner", 0), ("walker", 1))

    def test_of_one_environment_may_be_the_end_and_the_next_beginning(self):
        stream = acting()
        end, begin = stream.turns(turns(turn(agent(INTERRUPTED, reward=1.0), score=7.0), turn()))
        assert (end.n_running, begin.n_running) == (0, 1)
        assert [(value.statistic.event, value.value) for value in end.events] == [("score", 7.0)]

    def test_of_several_environments_do_not_wait_for_each_other(self):
        stream = stream_of(n_envs=2)
        stream.turns(turns(turn(environment=1)))
        stream.turns(turns(turn(environment=0)))
        assert stream.answer(1) == (("0", 0),)
        stream.turns(turns(turn(environment=1)))

    def test_must_not_come_before_the_actions_of_the_last(self):
        stream = stream_of()
        stream.turns(turns(turn()))
        with pytest.raises(InvalidTurnError, match="client 'game', environment 0: a turn arrived before the actions"):
            stream.turns(turns(turn()))

    def test_an_empty_message_is_refused(self):
        with pytest.raises(InvalidTurnError, match="expected turns, at least one"):
            stream_of().turns(turns())
        with pytest.raises(InvalidTurnError, match="sent empty after hello"):
            stream_of().turns(environment_pb2.PlayRequest())


class TestEnds:
    @pytest.mark.parametrize(
        ("again", "said"), [(walker(0), "is RUNNING"), (walker(0, REWARDED, 1.5), r"gets a reward of 1\.5")]
    )
    def test_an_agent_that_has_ended_neither_acts_nor_earns_again(self, again, said):
        stream = acting(TEAM, walker(0), walker(1))
        stream.turns(turns(turn(walker(0, TERMINATED), walker(1))))
        stream.answer(0)
        with pytest.raises(InvalidTurnError, match=f"agent 0 of substep 'walker': it {said}, but it has ended"):
            stream.turns(turns(turn(again, walker(1))))

    def test_an_agent_may_act_again_in_the_next_episode(self):
        stream = stream_of()
        for _ in range(3):
            stream.turns(turns(turn()))
            stream.answer(0)
            stream.turns(turns(turn(agent(TERMINATED))))

    def test_an_episode_must_not_end_before_all_who_acted(self):
        stream = acting(TEAM, walker(0), walker(1))
        with pytest.raises(InvalidTurnError, match=r"\[\('walker', 1\)\] have acted in the episode and not ended"):
            stream.turns(turns(turn(walker(0, TERMINATED), gunner(TERMINATED))))

    def test_an_episode_must_not_begin_without_an_agent_that_acts(self):
        with pytest.raises(InvalidTurnError, match="no agent is RUNNING in the first turn of an episode"):
            stream_of().turns(turns(turn(agent(TERMINATED))))

    def test_values_of_an_episode_must_not_come_before_its_end(self):
        with pytest.raises(InvalidTurnError, match="has episode_values, but its episode is not over"):
            stream_of().turns(turns(turn(agent(), score=1.0)))

    def test_names_of_values_are_bounded_over_all_clients(self):
        names = EpisodeValueNames()
        for number in range(128):
            names.statistic(f"value {number}", "another client")
        stream = acting(names=names)
        with pytest.raises(LimitExceededError, match="'score' exceeds the") as refused:
            stream.turns(turns(turn(agent(TERMINATED), score=1.0)))
        assert refused.value.limit == "max_episode_value_names"


class TestActionsOfOthers:
    def test_come_with_what_came_of_them(self):
        stream = acting(TEAM, walker(0), gunner())
        applied = np.array([0.5, 0.0, -2.0], np.float32)
        (told,) = stream.turns(
            turns(
                turn(
                    agent(RUNNING, SEEN, executed_action=applied.tobytes()),
                    agent(REWARDED, substep=1, chosen_by="a human", executed_action=np.int64(1).tobytes()),
                )
            )
        )
        np.testing.assert_array_equal(told.agents[0].executed_action, applied, strict=True)
        np.testing.assert_array_equal(told.agents[1].executed_action, np.int64(1))
        assert [each.chosen_by for each in told.agents] == ["", "a human"]

    def test_may_be_those_that_were_sent(self):
        stream = acting()
        (told,) = stream.turns(turns(turn(agent(TERMINATED, chosen_by="a planner"))))
        assert (told.agents[0].executed_action, told.agents[0].chosen_by) == (None, "a planner")

    @pytest.mark.parametrize("fields", [{"executed_action": bytes(8)}, {"chosen_by": "a human"}])
    def test_need_an_action_before(self, fields):
        stream = stream_of()
        with pytest.raises(InvalidTurnError, match=r"agent 0 of substep '0': .* has not acted in this episode"):
            stream.turns(turns(turn(agent(**fields))))
        stream = acting()
        stream.turns(turns(turn(agent(TERMINATED))))
        with pytest.raises(InvalidTurnError, match="has not acted in this episode"):
            stream.turns(turns(turn(agent(**fields))))

    @pytest.mark.parametrize(
        ("offered", "fields", "error", "said"),
        [
            (FLAT, {"executed_action": bytes(4)}, InvalidTensorError, "its executed_action has 4 bytes; expected 8"),
            (FLAT, {"executed_action": np.int64(3).tobytes()}, InvalidTensorError, "its executed_action holds 3"),
            (FLAT, {"chosen_by": "x" * 129}, InvalidTurnError, "its chosen_by is .* of 129 characters"),
            (FLAT, {"chosen_by": "a\nb"}, InvalidTurnError, r"its chosen_by is 'a\\nb'"),
            (TEAM, {"executed_action": np.array([0, math.nan, 0], np.float32).tobytes()}, InvalidTensorError, "nan"),
            (
                TEAM,
                {"executed_action": np.array([0, -2e9, 0], np.float32).tobytes()},
                InvalidTensorError,
                r"its executed_action holds -2e\+09; expected numbers from -1e\+09 to",
            ),
        ],
    )
    def test_that_cannot_be_are_refused(self, offered, fields, error, said):
        stream = acting(offered)
        with pytest.raises(error, match=f"client 'game', .*{said}"):
            stream.turns(turns(turn(agent(**fields))))


def twice(**fields):
    values = [environment_pb2.EpisodeValue(name="score", value=1.0)] * 2
    return environment_pb2.EnvironmentTurn(agents=[agent(TERMINATED)], episode_values=values, **fields)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (turn(environment=1), InvalidTurnError, "environment 1: there is no such environment; .* below 1"),
        (turn(agent(substep=1)), InvalidTurnError, r"agent 0 of substep number 1; .*\{'0': 1\}"),
        (turn(agent(number=1)), InvalidTurnError, "agent 1 of substep number 0"),
        (turn(agent(), agent()), InvalidTurnError, "names an agent twice"),
        (turn(agent(0)), InvalidTurnError, "its state is 0; expected one of .*RUNNING = 1"),
        (turn(agent(9)), InvalidTurnError, "its state is 9"),
        (
            turn(agent(reward=math.nan)),
            InvalidTurnError,
            r"its reward is nan; expected a number from -1e\+30 to 1e\+30",
        ),
        (turn(agent(reward=math.inf)), InvalidTurnError, "its reward is inf"),
        (turn(agent(reward=-1e39)), InvalidTurnError, r"its reward is -1e\+39"),
        (turn(agent(observation=())), InvalidTensorError, r"has 0 leaves; expected 1"),
        (turn(agent(observation=(b"1234",))), InvalidTensorError, r"has 4 bytes; expected 8, which is float32\[2\]"),
        (turn(agent(observation=(bytes(1 << 20),))), InvalidTensorError, "has 1048576 bytes; expected 8"),
        (
            turn(agent(observation=(np.array([0.0, -1e30], np.float32).tobytes(),))),
            InvalidTensorError,
            r"environment 0, agent 0 of substep '0': its observation holds -1e\+30; expected numbers from -1e\+18 to",
        ),
        (
            turn(agent(observation=(np.array([0.0, math.nan], np.float32).tobytes(),))),
            InvalidTensorError,
            r"environment 0, agent 0 of substep '0': its observation holds nan, element \[1\]",
        ),
        (turn(agent(REWARDED, (b"12345678",))), InvalidTurnError, "its state is REWARDED; expected none"),
        (twice(), InvalidTurnError, "has a name of an episode's value twice"),
        (turn(agent(TERMINATED), **{"a\nb": 1.0}), InvalidTurnError, "expected 1 to 128 printable characters"),
        (turn(agent(TERMINATED), **{"": 1.0}), InvalidTurnError, "expected 1 to 128 printable characters"),
        (turn(agent(TERMINATED), score=math.nan), InvalidTurnError, "the value 'score' of its episode is nan"),
    ],
)
def test_a_turn_that_breaks_a_rule_is_refused_and_named(wrong, error, said):
    stream = stream_of()
    with pytest.raises(error, match=f"client 'game', .*{said}"):
        stream.turns(turns(wrong))


def test_a_leaf_of_several_is_named_by_its_path():
    stream = stream_of(TEAM)
    wrong = agent(observation=(GUNNER_SEES[0], np.int64(5).tobytes()), substep=1)
    with pytest.raises(
        InvalidTensorError, match="substep 'gunner': its observation at 'ammo' holds 5; expected 0 to 4"
    ):
        stream.turns(turns(turn(wrong)))


def test_actions_are_encoded_in_the_dtype_of_their_space():
    stream = stream_of(TEAM)
    stream.turns(turns(turn(gunner(), walker(1))))
    chosen = [np.int64(1), np.array([0.5, 0.25, -1.0], np.float32)]
    encoded = environment_pb2.EnvironmentActions.FromString(stream.codec.actions(0, stream.answer(0), chosen))
    assert [(act.substep, act.agent) for act in encoded.agents] == [(1, 0), (0, 1)]
    assert encoded.agents[0].action == np.int64(1).tobytes()
    np.testing.assert_array_equal(np.frombuffer(encoded.agents[1].action, np.float32), chosen[1])


@pytest.mark.parametrize(("policy_version", "progress"), [(0, 0.0), (7, 0.5), (1 << 40, 1.0), (-1, 0.25)])
def test_answers_are_the_bytes_of_protobuf(policy_version, progress):
    # Actions of more than 127 bytes, whose length takes two.
    wide = SubstepSpaces(observation=spaces.Discrete(2), action=spaces.Box(-1.0, 1.0, (40,), np.float32), n_agents=200)
    stream = stream_of({"0": FLAT["0"], "wide": wide}, n_envs=300)
    answered = {
        environment: [(0, 0, np.int64(environment % 3)), (1, 199, np.full(40, 0.5, np.float32))][: environment % 2 + 1]
        for environment in (0, 1, 299)
    }
    encoded = []
    for environment, agents in answered.items():
        keys = [("wide" if substep else "0", number) for substep, number, _ in agents]
        encoded.append(stream.codec.actions(environment, keys, [action for *_, action in agents]))
    expected = [
        environment_pb2.EnvironmentActions(
            environment=environment,
            agents=[
                environment_pb2.AgentAction(substep=substep, agent=number, action=action.tobytes())
                for substep, number, action in agents
            ],
        )
        for environment, agents in answered.items()
    ]

    def whole(environments):
        actions = environment_pb2.Actions(environments=environments, policy_version=policy_version, progress=progress)
        return environment_pb2.PlayResponse(actions=actions).SerializeToString()

    assert [*actions_to_bytes(encoded, policy_version, progress, 1 << 20)] == [whole(expected)]
    parts = [*actions_to_bytes(encoded, policy_version, progress, len(whole(expected)) - 1)]
    assert parts == [whole(expected[:1]), whole(expected[1:])]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_of_every_size_are_taken(dtype):
    space = spaces.Box(-1.0, 1.0, (2,), dtype)
    stream = stream_of({"0": SubstepSpaces(observation=space, action=spaces.Discrete(2))})
    sent = np.array([0.25, -0.5], dtype)
    (taken,) = stream.turns(turns(turn(agent(observation=(sent.tobytes(),)))))
    np.testing.assert_array_equal(taken.agents[0].observation[""], sent)
