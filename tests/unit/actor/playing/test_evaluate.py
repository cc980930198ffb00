import math
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.playing.evaluate import evaluate_against, evaluate_policy, summarize, t_quantile_975
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.services.errors import ConfigurationError
from rollcast.services.joining.evaluation import EvaluationActions, EvaluationPlan
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.unit.actor.acting_policies import loaded
from tests.unit.actor.sample_environments import SampledEnv
from tests.unit.actor.structured_environments import SPACES as STRUCTURED_SPACES
from tests.unit.actor.structured_environments import ScriptedEnv, alternating

FACTORY = EnvironmentFactory("CartPole-v1")
SPACES = probe_spaces(FACTORY)


def cartpole_policy(seed: int = 0, **options: object) -> Policy:
    return loaded(SPACES, PolicySpec(hidden_sizes=(8,), **options), seed=seed)


def test_same_seed_plays_same_episodes_however_many_there_are():
    policy = cartpole_policy()
    first = evaluate_policy(FACTORY, policy, n_episodes=4, seed=3, deterministic=False)
    assert first == evaluate_policy(FACTORY, policy, n_episodes=4, seed=3, deterministic=False)
    assert first != evaluate_policy(FACTORY, policy, n_episodes=4, seed=4, deterministic=False)
    assert first.returns[:2] == evaluate_policy(FACTORY, policy, n_episodes=2, seed=3, deterministic=False).returns
    assert first.lengths == tuple(int(episode_return) for episode_return in first.returns)


def test_a_policy_of_values_has_no_actions_to_draw():
    policy = cartpole_policy(head="q_values")
    assert len(evaluate_policy(FACTORY, policy, n_episodes=1, seed=3, deterministic=True).returns) == 1
    with pytest.raises(
        ConfigurationError, match=r"has no distribution to draw actions from; .* --eval-actions likeliest"
    ):
        evaluate_policy(FACTORY, policy, n_episodes=1, seed=3, deterministic=False)


CARDS = EnvironmentFactory("tests.environments:HigherCard")


def card_player(card: int) -> dict[str, np.ndarray]:
    """The arrays of a policy that nearly always lays the same card."""
    arrays = {name: np.zeros_like(a) for name, a in TorchPolicy(probe_spaces(CARDS), CARD_SPEC).state_arrays().items()}
    arrays["networks.0.layers.1.bias"][card] = 30.0
    return arrays


CARD_SPEC = PolicySpec(hidden_sizes=(4,))


@pytest.mark.parametrize("actions", [EvaluationActions.LIKELIEST, EvaluationActions.DRAWN])
def test_games_against_others_are_played_from_every_seat_and_their_returns_are_margins(actions: EvaluationActions):
    spaces = probe_spaces(CARDS)
    policy = make_policy(spaces, CARD_SPEC, seed=0)
    policy.load(9, card_player(1))
    plan = EvaluationPlan(n_episodes=60, seed=3, actions=actions, opponents=True)
    played = evaluate_against(
        CARDS,
        policy,
        {2: card_player(0), 5: card_player(2), 7: card_player(1)},
        plan,
        lambda: make_policy(spaces, CARD_SPEC, seed=1),
    )
    assert list(played) == [0, 2, 5, 7]
    assert set(played[2].returns) == {2.0}, "it wins 1 and the other loses 1, whichever of the two it is"
    assert set(played[5].returns) == {-2.0}
    assert set(played[7].returns) == {0.0}
    assert set(played[0].returns) == {-2.0, 0.0, 2.0}, "random play lays every card"
    assert [len(games.lengths) for games in played.values()] == [60] * 4


def test_an_episode_that_may_have_no_end_is_told_of(caplog: pytest.LogCaptureFixture, monkeypatch):
    monkeypatch.setattr("rollcast.actor.playing.evaluate._LONG", {100})
    endless = EnvironmentFactory("tests.environments:CountingEnv", {"n_steps": 101})
    spaces = probe_spaces(endless)
    evaluation = evaluate_policy(endless, RandomPolicy(spaces, seed=0), n_episodes=1, seed=3, deterministic=True)
    assert evaluation.lengths == (101,)
    (record,) = caplog.records
    assert "has had 100 steps, and continues: without a time limit" in record.message
    assert "return truncated=True after a number of steps, or, if gymnasium has registered it, give" in record.message


def test_who_is_alone_has_no_opponents():
    plan = EvaluationPlan(n_episodes=2, seed=3, opponents=True)
    with pytest.raises(ConfigurationError, match="1 agent; expected an environment with several"):
        evaluate_against(FACTORY, cartpole_policy(), {}, plan, cartpole_policy)


@pytest.mark.parametrize("deterministic", [True, False], ids=["likeliest", "drawn"])
def test_box_actions_are_clipped_as_they_were_in_training(deterministic):
    box = Box(-1.0, 1.0, (1,), np.float32)
    position = Box(-np.inf, np.inf, (1,), np.float32)
    spaces = {FLAT_SUBSTEP: SubstepSpaces(observation=position, action=box)}
    policy = make_policy(spaces, PolicySpec(hidden_sizes=(8,)), seed=0)
    state = TorchPolicy(spaces, PolicySpec(hidden_sizes=(8,))).state_arrays()
    state[max(name for name in state if name.endswith("bias"))][:] = 3.0  # the means
    policy.load(1, state)
    given: list[np.ndarray] = []

    class Logged(SampledEnv):
        def step(self, action):
            given.append(np.array(action))
            return super().step(action)

    evaluate_policy(lambda: Logged(position, box), policy, n_episodes=10, seed=3, deterministic=deterministic)
    assert all(box.contains(action) for action in given)
    assert max(given) == 1.0


def test_mean_std_and_confidence_interval_have_golden_values():
    evaluation = summarize((1.0, 2.0, 3.0, 4.0), (5, 6, 7, 8))
    assert evaluation.mean == 2.5
    assert evaluation.std == pytest.approx(math.sqrt(5 / 3))
    low, high = evaluation.confidence_interval
    # 3 degrees of freedom: t = 3.182.
    assert high - 2.5 == pytest.approx(3.182 * math.sqrt(5 / 3) / 2)
    assert 2.5 - low == pytest.approx(high - 2.5)


def test_one_episode_has_infinite_confidence_interval():
    evaluation = summarize((7.0,), (3,))
    assert (evaluation.mean, evaluation.std) == (7.0, 0.0)
    assert evaluation.confidence_interval == (-math.inf, math.inf)


@pytest.mark.parametrize(("n", "t"), [(1, 12.706), (10, 2.228), (30, 2.042), (31, 2.040), (60, 2.000), (1000, 1.962)])
def test_quantiles_of_students_t(n, t):
    assert t_quantile_975(n) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize(("given", "message"), [({"n_episodes": 0}, "n_episodes is 0"), ({"seed": -1}, "seed is -1")])
def test_rejects_numbers_out_of_range(given, message):
    with pytest.raises(ConfigurationError, match=message):
        evaluate_policy(FACTORY, cartpole_policy(), **{"n_episodes": 1, "seed": 0, "deterministic": True, **given})


@pytest.mark.parametrize("module", ["moviepy", "pygame"])
def test_video_without_its_extra_names_the_one_command_that_installs_it(tmp_path, monkeypatch, module):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == module else find_spec(name))
    with pytest.raises(
        ConfigurationError, match=rf"a video needs {module}, which .*pip install .*\[video\]'"
    ) as caught:
        evaluate_policy(FACTORY, cartpole_policy(), n_episodes=1, seed=0, deterministic=True, video_dir=tmp_path)
    assert str(caught.value).count("pip install") == 1


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("moviepy") is None or find_spec("pygame") is None,
    reason="needs the extra `video` (moviepy and pygame), and it is not installed",
)
def test_writes_a_video_of_every_episode(tmp_path):
    for n_episodes in (1, 2):
        evaluate_policy(
            FACTORY, cartpole_policy(), n_episodes=n_episodes, seed=0, deterministic=True, video_dir=tmp_path
        )
    assert len(list(tmp_path.glob("*.mp4"))) == 2
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="for videos cannot be made: Not a directory"):
        evaluate_policy(
            FACTORY, cartpole_policy(), n_episodes=1, seed=0, deterministic=True, video_dir=tmp_path / "file" / "a"
        )


def test_video_needs_an_environment_factory(tmp_path):
    with pytest.raises(ConfigurationError, match="A video needs an EnvironmentFactory; got function"):
        evaluate_policy(
            lambda: FACTORY(), cartpole_policy(), n_episodes=1, seed=0, deterministic=True, video_dir=tmp_path
        )


@pytest.mark.parametrize(
    ("env_id", "what"),
    [("Unrendered", "unexpected keyword argument 'render_mode'"), ("Forgetful", "its render_mode is None")],
)
def test_a_video_of_an_environment_that_does_not_render_says_what_rendering_needs(
    tmp_path, monkeypatch, env_id: str, what: str
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_pictures.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Unrendered(CartPoleEnv):\n"
        "    def __init__(self): super().__init__()\n"
        "class Forgetful(CartPoleEnv):\n"
        "    def __init__(self, render_mode=None): super().__init__()\n"
    )
    with pytest.raises(ConfigurationError, match=f"cannot be recorded: .*{what}; .*takes render_mode='rgb_array'"):
        evaluate_policy(
            EnvironmentFactory(f"no_pictures:{env_id}"),
            cartpole_policy(),
            n_episodes=1,
            seed=0,
            deterministic=True,
            video_dir=tmp_path,
        )


def test_structured_environments_are_played_by_all_their_agents():
    """The scripted walkers earn 1 for each of two turns, the guide nothing, and everybody 10 at the end."""
    policy = RandomPolicy(STRUCTURED_SPACES, seed=0)
    evaluation = evaluate_policy(
        lambda: ScriptedEnv([alternating(3)]), policy, n_episodes=4, seed=0, deterministic=False
    )
    assert evaluation.lengths == (3,) * 4
    assert dict(evaluation.agent_returns) == {"guide/0": 10.0, "walker/0": 12.0, "walker/1": 10.0}
    assert evaluation.returns == pytest.approx((32 / 3,) * 4)


def test_rejects_video_of_structured_environment(tmp_path):
    factory = EnvironmentFactory("mpe2.simple_spread_v3:parallel_env")
    with pytest.raises(ConfigurationError, match="cannot be recorded: the environment is structured"):
        evaluate_policy(factory, None, n_episodes=1, seed=0, deterministic=True, video_dir=tmp_path)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("text", "returned a wrong value from step\\(\\): the reward is '1'; expected a number"),
        ("nan", "returned a wrong value from step\\(\\): the reward is nan; expected a finite number"),
        ("sight", "the observation of ActorId.* holds nan, element \\[2\\]; expected finite numbers"),
        ("four", "step\\(\\) returned a tuple of 4"),
        ("exit", "raised SystemExit in step\\(\\): sys.exit\\(\\) was called"),
    ],
)
def test_error_of_failed_environment_has_its_seed(what: str, message: str):
    factory = EnvironmentFactory("tests.wrong_environments:WrongEnv", {"what": what})
    policy = RandomPolicy(probe_spaces(factory), seed=0)
    with pytest.raises(EnvironmentFailedError, match=rf"environment 0 \(seed \d+\) .*{message}"):
        evaluate_policy(factory, policy, n_episodes=1, seed=0, deterministic=False)


class FailsInMostEpisodes(gymnasium.Wrapper):
    """Raises in the third step of each episode but every n-th; after the last that may end in every one."""

    def __init__(self, env: gymnasium.Env, *, every: int = 2, last: int = 10**6) -> None:
        super().__init__(env)
        self._every, self._last, self._n_episodes, self._n_steps = every, last, 0, 0

    def reset(self, **options):
        self._n_episodes, self._n_steps = self._n_episodes + 1, 0
        return super().reset(**options)

    def step(self, action):
        self._n_steps += 1
        if self._n_steps == 3 and (self._n_episodes % self._every or self._n_episodes > self._last):
            raise RuntimeError("the third step")
        return super().step(action)


def make_failing(**options: int) -> gymnasium.Env:
    return FailsInMostEpisodes(gymnasium.make("CartPole-v1"), **options)


def failing(on_step_failure: str, **env_kwargs: int) -> EnvironmentFactory:
    return EnvironmentFactory(f"{__name__}:make_failing", env_kwargs, on_step_failure=on_step_failure)


def test_episode_in_which_the_environment_raised_is_left_out_where_training_drops_it():
    policy = RandomPolicy(SPACES, seed=0)
    whole = evaluate_policy(EnvironmentFactory("CartPole-v1"), policy, n_episodes=6, seed=3, deterministic=False)
    evaluation = evaluate_policy(failing("drop_episode"), policy, n_episodes=3, seed=3, deterministic=False)
    assert evaluation.returns == whole.returns[1::2]
    with pytest.raises(EnvironmentFailedError, match="the third step"):
        evaluate_policy(failing("fail"), policy, n_episodes=3, seed=3, deterministic=False)


def test_an_evaluation_counts_what_it_could_play_where_the_environment_raises_in_most_episodes(caplog):
    policy = RandomPolicy(SPACES, seed=0)
    whole = evaluate_policy(EnvironmentFactory("CartPole-v1"), policy, n_episodes=12, seed=3, deterministic=False)
    found = evaluate_policy(failing("drop_episode", every=4), policy, n_episodes=3, seed=3, deterministic=False)
    assert found.returns == whole.returns[3::4], "further seeds, as many as it takes"
    assert "episodes ended" not in caplog.text
    few = evaluate_policy(failing("drop_episode", every=4, last=8), policy, n_episodes=3, seed=3, deterministic=False)
    assert few.returns == whole.returns[3:8:4]
    assert "2 of 3 episodes ended, because the environment raised in 28 others;" in caplog.text


def test_environment_that_raises_in_every_episode_fails_the_evaluation():
    policy = RandomPolicy(SPACES, seed=0)
    n_steps = []
    with pytest.raises(EnvironmentFailedError, match="the third step"):
        evaluate_policy(
            failing("drop_episode", last=0),
            policy,
            n_episodes=3,
            seed=3,
            deterministic=False,
            on_step=lambda: n_steps.append(1),
        )
    assert len(n_steps) == 30 * (1 + 3), "ten episodes are begun for each that was to be played"


def test_recurrent_policy_begins_every_episode_without_memory():
    policy = cartpole_policy(recurrence="gru", recurrent_size=4)
    seen: list[tuple[bool, float]] = []
    act = policy.act

    def watched(observation, *, state, **arguments):
        began = not state.any()
        result = act(observation, state=state, **arguments)
        seen.append((began, float(np.abs(state).max())))
        return result

    policy.act = watched  # type: ignore[method-assign]
    many = evaluate_policy(FACTORY, policy, n_episodes=3, seed=3, deterministic=False)
    assert [index for index, (began, _) in enumerate(seen) if began] == [0, *np.cumsum(many.lengths)[:-1].tolist()]
    assert all(remembered > 0 for _, remembered in seen)


def test_policy_with_a_frame_stack_begins_every_episode_with_its_first_frame():
    policy = cartpole_policy(frame_stack=3)
    stacks: list[np.ndarray] = []
    act = policy.act

    def watched(observation, **arguments):
        stacks.append(observation[""].copy())
        return act(observation, **arguments)

    policy.act = watched  # type: ignore[method-assign]
    many = evaluate_policy(FACTORY, policy, n_episodes=3, seed=3, deterministic=False)
    firsts = [0, *np.cumsum(many.lengths)[:-1].tolist()]
    for i, stack in enumerate(stacks):
        if i in firsts:
            assert (stack == stack[:, :1]).all()
        else:
            np.testing.assert_array_equal(stack[:, :-1], stacks[i - 1][:, 1:])
