"""`RemoteVecEnv`: environments of real clients, as gymnasium and Stable-Baselines3 see them."""

import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import grpc
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollcast.actor import EnvironmentLostError, RemoteVecEnv
from rollcast.actor.environments.returned_values import InvalidValueError
from rollcast.services.errors import ConfigurationError, InvalidSpaceError, NotReadyError, RefusedError
from rollcast.v1.environment_pb2 import AgentAction, EnvironmentTurn, PlayRequest, PlayResponse
from rollcast.v1.space_pb2 import SubstepSpaces
from tests.bad_line import BadLine, Change, flips, without_digest
from tests.processes import DEADLINE_S, ROOT, free_port

sys.path.insert(0, str(ROOT / "clients/python"))
from cartpole import SUBSTEP, CartPole

import rollcast_play
from rollcast_play import Player

pytestmark = pytest.mark.slow


class LeavesAfter(CartPole):
    """A CartPole whose program fails at a step."""

    def __init__(self, n_steps: int) -> None:
        super().__init__()
        self._n_left = n_steps

    def step(self, actions: Sequence[AgentAction]) -> EnvironmentTurn:
        self._n_left -= 1
        if self._n_left == 0:
            raise BrokenPipeError("the game is gone")
        return super().step(actions)


class Clients:
    """Clients of one address, each in a thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.threads: list[threading.Thread] = []
        self.ends: list[str | BaseException] = []

    def come(self, *poles: CartPole, substep: SubstepSpaces = SUBSTEP, name: str = "") -> None:
        def end() -> str | BaseException:
            try:
                return Player(poles, [substep], name=name).play(self.address)
            except (OSError, grpc.RpcError) as error:
                return error

        def play() -> None:
            # The place of the one before may not be free yet.
            while _found_no_place(ended := end()):
                threading.Event().wait(0.02)
            self.ends.append(ended)

        self.threads.append(threading.Thread(target=play))
        self.threads[-1].start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def _found_no_place(ended: str | BaseException) -> bool:
    return isinstance(ended, grpc.RpcError) and ended.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def clients() -> Iterator[Clients]:
    clients = Clients(f"127.0.0.1:{free_port()}")
    yield clients
    clients.join()


Make = Callable[..., RemoteVecEnv]


@pytest.fixture
def make(clients: Clients) -> Iterator[Make]:
    made: list[RemoteVecEnv] = []

    def make(n_envs: int, **options: object) -> RemoteVecEnv:
        made.append(RemoteVecEnv(clients.address, n_envs, timeout_s=DEADLINE_S, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


def follows(before: np.ndarray, action: int, after: np.ndarray) -> bool:
    """Returns whether CartPole leads from one observation to the next."""
    cart_pole = gymnasium.make("CartPole-v1").unwrapped
    cart_pole.reset(seed=0)
    cart_pole.state = before.astype(np.float64)
    return np.allclose(cart_pole.step(action)[0], after, atol=1e-5)


def has_begun(observation: np.ndarray) -> bool:
    return bool(np.abs(observation).max() <= 0.05)


class TestDigests:
    """A client behind a line that may damage messages, or cut off their digests as an older server does."""

    @pytest.fixture
    def line(self, clients: Clients, make: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[BadLine, int]]:
        """Returns a function that brings a client, and lets it play 20 steps behind a line."""
        monkeypatch.setattr(rollcast_play, "FIRST_PAUSE_S", 0.01)

        def play(**changes: Change) -> tuple[BadLine, int]:
            before_line = Clients(f"127.0.0.1:{free_port()}")
            digests = (
                lambda request: PlayRequest.FromString(request).digest,
                lambda response: PlayResponse.FromString(response).digest,
            )
            line, n_truncated = BadLine(rollcast_play.METHOD, clients.address, digests, **changes), 0
            with line.at(before_line.address):
                before_line.come(CartPole())
                env = make(1)
                before, _ = env.reset(seed=1)
                for step in range(20):
                    after, _, terminated, truncated, _ = env.step(np.array([step % 2]))
                    assert terminated[0] or truncated[0] or follows(before[0], step % 2, after[0])
                    before, n_truncated = after, n_truncated + truncated[0]
                env.close()
                before_line.join()
            return line, n_truncated

        return play

    def test_a_good_line_costs_nothing(self, line):
        done, n_truncated = line()
        assert n_truncated == 0
        assert done.n_digests == done.n_messages

    @pytest.mark.parametrize("way", ["request", "response"])
    def test_a_damaged_message_costs_an_episode(self, line, way: str, capfd: pytest.CaptureFixture[str]):
        done, n_truncated = line(**{way: flips(7)})
        assert n_truncated == 1
        assert done.n_digests == done.n_messages
        says = {"request": r"the digest of its \d+ bytes does not match", "response": "its digest does not match"}
        said = f"(?m)^UNAVAILABLE: a message was damaged in transit: {says[way]}.*; trying again"
        assert re.search(said, capfd.readouterr().err)

    def test_an_older_server_sends_none(self, line):
        done, n_truncated = line(request=without_digest)
        assert n_truncated == 0
        assert done.n_digests == [done.n_messages[0], 0]

    def test_a_client_without_xxhash_sends_none(self, line, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(rollcast_play, "xxhash", None)
        done, n_truncated = line()
        assert n_truncated == 0
        assert done.n_digests == [0, 0]


def test_steps_are_those_of_the_environments(clients: Clients, make: Make):
    clients.come(CartPole(), CartPole())
    clients.come(CartPole())
    env = make(3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.single_observation_space.shape == (4,)
    assert (env.single_action_space, env.action_space.shape) == (gymnasium.spaces.Discrete(2), (3,))
    observation, infos = env.reset(seed=3)
    assert not infos
    assert env.observation_space.contains(observation)
    assert all(map(has_begun, observation))
    n_ended = 0
    for step in range(60):
        actions = np.array([1, 1, step % 2])
        following, reward, terminated, truncated, infos = env.step(actions)
        assert (following.dtype, reward.dtype, terminated.dtype) == (np.float32, np.float32, np.bool_)
        assert reward.tolist() == [1, 1, 1]
        assert not truncated.any()
        for index in range(3):
            after = following[index]
            if terminated[index]:
                after = infos["final_obs"][index]
                assert infos["final_info"]["final_position"][index] == pytest.approx(after[0], abs=1e-6)
                assert has_begun(following[index])
            assert follows(observation[index], actions[index], after)
        n_ended += int(terminated.sum())
        observation = following
    assert n_ended >= 6


def test_gymnasiums_own_wrapper_counts_returns(clients: Clients, make: Make):
    clients.come(CartPole(), CartPole())
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(make(2))
    env.reset(seed=1)
    n_steps = np.zeros(2)
    for _ in range(50):
        _, _, terminated, _, infos = env.step(np.ones(2, np.int64))
        n_steps += 1
        for index in terminated.nonzero()[0]:
            assert infos["episode"]["r"][index] == infos["episode"]["l"][index] == n_steps[index]
            n_steps[index] = 0
    assert n_steps.max() < 50


class TestReset:
    def test_the_same_seeds_give_the_same_episodes(self, clients: Clients, make: Make):
        clients.come(CartPole(), CartPole())
        env = make(2)
        runs = []
        for seed in (7, 7, [7, 8], 9):
            first, _ = env.reset(seed=seed)
            runs.append(np.concatenate([first, *(env.step(np.array([0, 1]))[0] for _ in range(20))]))
        np.testing.assert_array_equal(runs[0], runs[1])
        np.testing.assert_array_equal(runs[0], runs[2])
        assert not np.array_equal(runs[0], runs[3])

    def test_episodes_in_the_middle_are_given_up(self, clients: Clients, make: Make):
        clients.come(CartPole())
        env = make(1)
        env.reset(seed=1)
        for _ in range(5):
            (observation,), *_ = env.step(np.array([1]))
        assert not has_begun(observation)
        (observation,), _ = env.reset()
        assert has_begun(observation)

    def test_episodes_that_have_just_begun_stay(self, clients: Clients, make: Make):
        clients.come(CartPole())
        env = make(1)
        first, _ = env.reset(seed=1)
        again, _ = env.reset()
        np.testing.assert_array_equal(first, again)

    def test_options_and_wrong_numbers_of_seeds_are_refused(self, clients: Clients, make: Make):
        clients.come(CartPole())
        env = make(1)
        with pytest.raises(ConfigurationError, match="options"):
            env.reset(options={"level": 3})
        with pytest.raises(ConfigurationError, match="2 seeds; expected 1"):
            env.reset(seed=[1, 2])


class TestLeaving:
    def test_the_episode_is_truncated_and_another_environment_begins_one(self, clients: Clients, make: Make):
        clients.come(LeavesAfter(4))
        env = make(1)
        (observation,), _ = env.reset(seed=1)
        for _ in range(3):
            (observation,), reward, _, truncated, _ = env.step(np.array([1]))
            assert (reward[0], truncated[0]) == (1, False)
        clients.come(CartPole())
        (begun,), reward, terminated, truncated, infos = env.step(np.array([1]))
        assert (reward[0], terminated[0], truncated[0]) == (0, False, True)
        np.testing.assert_array_equal(infos["final_obs"][0], observation)
        assert infos["final_info"]["has_left"][0]
        assert has_begun(begun)
        (observation,), reward, _, truncated, _ = env.step(np.array([1]))
        assert (reward[0], truncated[0]) == (1, False)
        assert follows(begun, 1, observation)

    def test_it_raises_if_it_was_told_to(self, clients: Clients, make: Make):
        clients.come(CartPole())
        clients.come(LeavesAfter(2))
        env = make(2, on_leave="raise")
        env.reset(seed=1)
        env.step(np.array([1, 1]))
        with pytest.raises(EnvironmentLostError, match=r"has left.*call reset"):
            env.step(np.array([1, 1]))
        clients.come(CartPole())
        observation, _ = env.reset(seed=1)
        assert all(map(has_begun, observation))

    def test_nobody_comes(self, clients: Clients):
        with pytest.raises(NotReadyError, match="no client dialled in"):
            RemoteVecEnv(clients.address, 1, timeout_s=0.1)

    def test_too_few_come(self, clients: Clients, make: Make):
        clients.come(CartPole())
        env = RemoteVecEnv(clients.address, 2, timeout_s=5)
        with pytest.raises(NotReadyError, match="1 of 2 environments were ready"):
            env.reset()
        env.close()


class TestArguments:
    @pytest.mark.parametrize(
        ("n_envs", "options", "said"),
        [(0, {}, "n_envs is 0"), (1, {"on_leave": "cry"}, "on_leave is 'cry'")],
    )
    def test_wrong_ones_are_refused(self, clients: Clients, n_envs: int, options: dict[str, str], said: str):
        with pytest.raises(ConfigurationError, match=said):
            RemoteVecEnv(clients.address, n_envs, **options)

    def test_several_agents_are_refused_on_both_sides(self, clients: Clients):
        pair = SubstepSpaces()
        pair.CopyFrom(SUBSTEP)
        pair.n_agents = 2
        clients.come(CartPole(), substep=pair)
        with pytest.raises(InvalidSpaceError, match="several agents"):
            RemoteVecEnv(clients.address, 1, timeout_s=DEADLINE_S)
        clients.join()
        (end,) = clients.ends
        assert isinstance(end, grpc.RpcError)
        assert "several agents" in end.details()

    @pytest.mark.parametrize("wrong", [2, -1])
    def test_an_action_outside_the_space_reaches_no_client(self, clients: Clients, make: Make, wrong: int):
        clients.come(CartPole(), CartPole())
        env = make(2)
        before, _ = env.reset(seed=1)
        with pytest.raises(InvalidValueError, match=rf"the action holds {wrong} at \(env\) = \(1\); expected 0 to 1"):
            env.step(np.array([0, wrong]))
        after, *_ = env.step(np.array([0, 1]))
        for index in range(2):
            assert follows(before[index], index, after[index])

    def test_order_of_calls(self, clients: Clients, make: Make):
        clients.come(CartPole())
        env = make(1)
        with pytest.raises(RefusedError, match="before reset"):
            env.step(np.array([1]))
        env.close()
        with pytest.raises(RefusedError, match="closed"):
            env.reset()
        clients.join()
        assert clients.ends == ["training has ended"]


class TestSb3:
    def test_infos_are_those_of_sb3(self, clients: Clients, make: Make):
        clients.come(CartPole(), CartPole())
        env = make(2).for_sb3()
        env.seed(5)
        first = env.reset()
        assert first.shape == (2, 4)
        dones = np.zeros(2, bool)
        while not dones[0]:
            _, rewards, dones, infos = env.step(np.array([1, 1]))
            assert rewards.tolist() == [1, 1]
            assert bool(infos[0]) == dones[0]
        assert abs(infos[0]["terminal_observation"][2]) > 12 * math.pi / 180
        assert infos[0]["TimeLimit.truncated"] is False
        assert infos[0]["final_position"] == pytest.approx(infos[0]["terminal_observation"][0], abs=1e-6)
        env.seed(5)
        np.testing.assert_array_equal(env.reset(), first)
        assert env.env_is_wrapped(gymnasium.Wrapper) == [False, False]

    @pytest.mark.filterwarnings("default")
    def test_its_own_ppo_learns_cartpole(self, clients: Clients, make: Make):
        from stable_baselines3 import PPO
        from stable_baselines3.common.vec_env import VecMonitor

        for _ in range(2):
            clients.come(*(CartPole() for _ in range(4)))
        env = VecMonitor(make(8).for_sb3())
        model = PPO(
            "MlpPolicy",
            env,
            n_steps=32,
            batch_size=256,
            n_epochs=20,
            gamma=0.98,
            gae_lambda=0.8,
            learning_rate=1e-3,
            seed=1,
            device="cpu",
        )
        model.learn(15_000)
        returns = [episode["r"] for episode in model.ep_info_buffer]
        assert np.mean(returns) > 80, "a policy that tosses a coin has 22"
