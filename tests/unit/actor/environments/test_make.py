import gymnasium
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import make_vector_env
from rollcast.services.errors import ConfigurationError
from tests.unit.actor.sample_environments import NumberedEnv

HERE = "tests.unit.actor.sample_environments"


def test_makes_a_registered_environment():
    env = EnvironmentFactory("CartPole-v1", {"sutton_barto_reward": True})()
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    env.reset(seed=0)
    assert env.step(0)[1] == 0.0, "as its argument says"
    assert "PassiveEnvChecker" not in str(env)
    env.close()


def test_makes_own_environment():
    env = EnvironmentFactory(f"{HERE}:NumberedEnv", {"lengths": (7,)})()
    assert isinstance(env, NumberedEnv)
    assert env.lengths == (7,)


def test_makes_gymnasiums_module_and_id(tmp_path, monkeypatch):
    (tmp_path / "registers_of_test.py").write_text(
        "import gymnasium\n"
        f"gymnasium.register('Numbered-v0', entry_point='{HERE}:NumberedEnv')\n"
        f"gymnasium.register('NumberedPlain', entry_point='{HERE}:NumberedEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        for env_id in ("registers_of_test:Numbered-v0", "registers_of_test:NumberedPlain"):
            factory = EnvironmentFactory(env_id)
            assert isinstance(factory().unwrapped, NumberedEnv)
            make_vector_env(factory, 2).close()
    finally:
        for env_id in ("Numbered-v0", "NumberedPlain"):
            gymnasium.registry.pop(env_id, None)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Qqqqqqqqqq", r"env_id 'Qqqqqqqqqq' names no environment.*pprint_registry"),
        (":factory", "cannot be loaded"),
        ("nowhere:Env-v0", "No module named 'nowhere'"),
        (f"{HERE}:Missing-v0", "names no environment"),
        (f"{HERE}:missing", "no attribute 'missing'"),
        (f"{HERE}:not_an_environment", r"returned a str; expected a gymnasium\.Env"),
    ],
)
def test_rejects_wrong_entry_points(env_id, message):
    for make in (EnvironmentFactory(env_id), lambda: make_vector_env(EnvironmentFactory(env_id), 2)):
        with pytest.raises(ConfigurationError, match=message):
            make()


def test_a_file_in_this_folder_is_meant_before_anything_else(tmp_path, monkeypatch):
    (tmp_path / "cartpole.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"cartpole\.py is in this folder: write 'cartpole:NAME'"):
        EnvironmentFactory("cartpole")()


def test_rejects_wrong_arguments_of_environment():
    for env_id in ("CartPole-v1", f"{HERE}:NumberedEnv"):
        with pytest.raises(
            ConfigurationError, match=rf"env_id '{env_id}' cannot be made with env_kwargs {{'gravty': 3}}"
        ):
            EnvironmentFactory(env_id, {"gravty": 3})()
    with pytest.raises(ConfigurationError, match="gravty"):
        make_vector_env(EnvironmentFactory("CartPole-v1", {"gravty": 3}), 2)


@pytest.mark.parametrize(
    ("setting", "value", "known"),
    [
        ("vectorization", "async", "auto, sync, entry_point"),
        ("agent_policies", "alone", "shared, separate"),
        ("on_step_failure", "ignore", "fail, drop_episode"),
    ],
)
def test_rejects_unknown_value_of_a_setting(setting, value, known):
    with pytest.raises(ConfigurationError, match=f"{setting} is '{value}'; expected one of {known}"):
        EnvironmentFactory("CartPole-v1", **{setting: value})


def test_a_class_in_place_of_a_name_is_a_factory_itself():
    with pytest.raises(ConfigurationError, match=r"env_id is <class .*NumberedEnv'>; expected .* is itself a factory"):
        EnvironmentFactory(NumberedEnv)
