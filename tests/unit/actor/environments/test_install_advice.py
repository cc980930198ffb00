import sys

import gymnasium
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.services.errors import ConfigurationError


def refused(env_id: str, **env_kwargs: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        EnvironmentFactory(env_id, env_kwargs)()
    return str(caught.value)


@pytest.fixture(autouse=True)
def no_path(monkeypatch: pytest.MonkeyPatch):
    """pip is named by what finds it, which depends on the shell."""
    monkeypatch.setattr("rollcast.actor.environments.install_advice.typed", lambda program: program)


@pytest.fixture(autouse=True)
def no_ale_py(monkeypatch: pytest.MonkeyPatch):
    """It is not installed, as far as imports and gymnasium's registry say."""
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for env_id in [name for name in gymnasium.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, env_id)


@pytest.mark.parametrize(
    ("env_id", "advice"),
    [
        ("CartPol-v1", "did you mean CartPole-v1?"),
        ("ALE/Pong-v5", "ale-py registers this id: pip install ale-py, and write 'ale_py:ALE/Pong-v5'"),
        (
            "MiniGrid-Empty-5x5-v0",
            "minigrid registers this id: pip install minigrid, and write 'minigrid:MiniGrid-Empty-5x5-v0'",
        ),
        ("ale_py:ALE/Pong-v5", "pip install -e '.[atari]'"),
        ("nowhere_3.game:make", "there is no nowhere_3.py in this folder: if the module is yours, go to its folder"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "install its package: pip install minigrid"),
        ("mpe2.no_such_game:make", "correct the name: mpe2 is installed and has no mpe2.no_such_game"),
        ("cartpole-V1", "did you mean CartPole-v1?"),
        ("Qqq-v0", "if a package registers this id, install it and write 'module:id'"),
    ],
)
def test_error_of_missing_environment_has_advice(env_id: str, advice: str):
    assert advice in refused(env_id)


def test_error_of_unregistered_id_names_the_module_to_write(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: object() if module == "minigrid" else None)
    assert "write 'minigrid:MiniGrid-Empty-5x5-v0', so that" in refused("MiniGrid-Empty-5x5-v0")


def _needs_more() -> gymnasium.Env:
    raise gymnasium.error.DependencyNotInstalled(
        'Box2D is not installed, run `pip install swig` followed by `pip install "gymnasium[box2d]"`'
    )


def _needs_box2d() -> gymnasium.Env:
    why = ModuleNotFoundError(name="Box2D")
    raise gymnasium.error.DependencyNotInstalled("Box2D is not installed, run `pip install swig`") from why


def _needs_module() -> gymnasium.Env:
    import no_such_engine  # noqa: F401

    raise AssertionError


def _takes_none() -> gymnasium.Env:
    raise AssertionError


@pytest.mark.parametrize(
    ("factory", "env_kwargs", "advice"),
    [
        ("_needs_more", {}, 'install what it needs: pip install swig && pip install "gymnasium[box2d]"'),
        ("_needs_module", {}, "otherwise install the package that contains the module"),
        ("_takes_none", {"gravity": 9.8}, "correct env_kwargs, or install what it needs"),
    ],
)
def test_error_of_environment_that_cannot_be_made_has_advice(factory: str, env_kwargs: dict[str, float], advice: str):
    assert advice in refused(f"{__name__}:{factory}", **env_kwargs)


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("pettingzoo:make", "pettingzoo", "pettingzoo"),
        ("torch:make", "torch", "torch"),
        (f"{__name__}:_needs_box2d", "Box2D", "box2d"),
    ],
)
def test_advice_for_package_of_an_extra_is_the_extra(monkeypatch: pytest.MonkeyPatch, env_id, module, extra):
    monkeypatch.setattr("rollcast.actor.environments.install_advice.install_extra", lambda extra: f"INSTALL {extra}")
    monkeypatch.setitem(sys.modules, module, None)
    assert f"install it: INSTALL {extra}" in refused(env_id)
