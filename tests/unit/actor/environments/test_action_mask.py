import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollcast.actor.environments.action_mask import ActionMaskFromInfo, make
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import WORKER_INFO_KEYS, environment_spaces, make_vector_env
from rollcast.services.errors import ActorFailedError, ConfigurationError, InvalidSpaceError
from tests.masked_environments import MaskedCorridor, NothingAllowed
from tests.unit.actor.sample_environments import SampledEnv
from tests.unit.actor.workers.flat_workers import worker_of


class Forgetful(MaskedCorridor):
    """Has its mask in `info` when it is reset, and not again; or one that is too long."""

    def __init__(self, length: int | None = None) -> None:
        super().__init__(in_info=True)
        self._length = length

    def step(self, action):
        *step, _ = super().step(action)
        return *step, {} if self._length is None else {"action_mask": np.ones(self._length, np.int8)}


def in_info():
    return MaskedCorridor(in_info=True)


def wrapped():
    return make(f"{__name__}:in_info")


def test_wrapper_puts_mask_beside_observation():
    env, reference = ActionMaskFromInfo(MaskedCorridor(in_info=True)), MaskedCorridor()
    observation, info = env.reset(seed=3)
    expected, _ = reference.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(16):
        assert env.observation_space.contains(observation)
        assert observation["observation"] == expected["cell"]
        np.testing.assert_array_equal(observation["action_mask"], expected["action_mask"])
        assert info["action_mask"] is not None
        action = rng.choice(np.flatnonzero(observation["action_mask"]))
        observation, reward, terminated, truncated, info = env.step(action)
        expected, *same = reference.step(action)
        assert (reward, terminated, truncated) == tuple(same[:3])
        if terminated or truncated:
            break
    assert terminated or truncated
    # without a mask at the end everything is allowed: nobody acts there
    np.testing.assert_array_equal(observation["action_mask"], np.ones(8))


def test_the_factory_makes_gymnasiums_taxi():
    vector_env = make_vector_env(
        EnvironmentFactory("rollcast.actor.environments.action_mask:make", {"env_id": "Taxi-v4"}), 3
    )
    substep = environment_spaces(vector_env)["0"]
    assert set(substep.observation.spaces) == {"observation", "action_mask"}
    worker = worker_of(vector_env, 300)
    rollout = worker.collect()
    worker.close()
    columns = rollout.substeps["0"]
    mask = columns.observation["action_mask"]
    assert 0 < mask.mean() < 1
    assert np.take_along_axis(mask, columns.action[..., None], axis=2).all()
    np.testing.assert_allclose(columns.log_prob, -np.log(mask.sum(axis=2)), rtol=1e-5)


@pytest.mark.parametrize(
    "env_id", [f"{__name__}:in_info", f"{__name__}:wrapped", f"{__name__}:{MaskedCorridor.__name__}"]
)
def test_a_mask_that_only_infos_have_is_a_warning(env_id, caplog):
    vector_env = make_vector_env(EnvironmentFactory(env_id), 2, info_keys=WORKER_INFO_KEYS)
    for _ in range(2):
        vector_env.reset(seed=1)
    vector_env.close()
    expected = ["rollcast.actor.environments.action_mask:make"] if env_id.endswith("in_info") else []
    assert [line.rpartition(" ")[2] for line in caplog.messages] == expected


def test_rejects_missing_and_too_long_masks():
    for env, message in (
        (Forgetful(), r"has only \[\]; expected 'action_mask' of shape \[8\]"),
        (Forgetful(9), r"has a mask of shape \[9\]; expected"),
    ):
        masked = ActionMaskFromInfo(env)
        observation, _ = masked.reset(seed=0)
        with pytest.raises(ConfigurationError, match=message):
            masked.step(int(observation["action_mask"].argmax()))
    with pytest.raises(ConfigurationError, match="do not use ActionMaskFromInfo"):
        make("CartPole-v1").reset()


def test_rejects_actions_without_masks():
    with pytest.raises(InvalidSpaceError, match="expected a mask only with Discrete or MultiDiscrete"):
        ActionMaskFromInfo(SampledEnv(spaces.Discrete(2), spaces.MultiBinary(2)))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_rollouts_have_masks_with_both_reset_modes(mode):
    # the corridor allows nothing at the end, which is the observation of a reset row in one of them
    vector_env = SyncVectorEnv([MaskedCorridor] * 4, autoreset_mode=mode)
    worker = worker_of(vector_env, 64)
    rollout = worker.collect()
    worker.close()
    columns = rollout.substeps["0"]
    np.testing.assert_allclose(
        columns.log_prob[rollout.valid if rollout.valid is not None else ...], np.log(0.25), rtol=1e-5
    )
    assert (rollout.valid is not None) is (mode is AutoresetMode.NEXT_STEP)
    assert len(rollout.episodes) >= 12
    if mode is AutoresetMode.SAME_STEP:
        assert not columns.final_observation["action_mask"].any()


def test_environment_that_allows_no_action_fails():
    vector_env = SyncVectorEnv([MaskedCorridor, NothingAllowed], autoreset_mode=AutoresetMode.SAME_STEP)
    worker = worker_of(vector_env, 5)
    with pytest.raises(ActorFailedError, match="environment 1 allows no action for element 0 in step 1"):
        worker.collect()
    worker.close()
