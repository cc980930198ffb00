import numpy as np
import pytest

from rollcast.learner.replay import free_memory as memory
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.substeps import SubstepBuffers, make_buffers
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import EnvironmentSpaces
from tests.buffers import make_buffer
from tests.played_rollouts import SPACES as FLAT
from tests.played_rollouts import World, check_same, random_ends
from tests.two_substeps import SPACES

T = 4


def make(spaces: EnvironmentSpaces = SPACES, *, said: list[str] | None = None, **settings: object) -> SubstepBuffers:
    replay = ReplaySettings(**{"capacity": 1000, **settings})
    announce = (lambda line: None) if said is None else said.append
    return make_buffers(replay, spaces, n_rollout_steps=T, batch_size=8, seed=3, announce=announce)


def test_makes_a_buffer_for_each_substep_and_announces_total_memory_once():
    said: list[str] = []
    buffers = make(said=said)
    assert list(buffers) == list(SPACES)
    (line,) = said
    for key, buffer in buffers.items():
        assert buffer.info().capacity == 1000
        assert f"{key!r}: 1,000 transitions of {buffer.info().n_bytes / 1000:,.1f} bytes" in line
    n_bytes = sum(buffer.info().n_bytes for buffer in buffers.values())
    assert f"; {memory.format_bytes(n_bytes)} together; " in line


def test_rejects_buffers_that_fit_one_by_one_but_not_together(monkeypatch: pytest.MonkeyPatch):
    largest = max(buffer.info().n_bytes for buffer in make().values())
    monkeypatch.setattr(memory, "available_bytes", lambda: largest + 1)
    with pytest.raises(
        ConfigurationError, match=r"a replay buffer for each of the 2 substeps \['scout', 'base'\] takes"
    ):
        make()
    monkeypatch.setattr(memory, "available_bytes", lambda: 2 * largest)
    make()


def test_rejects_impossible_settings_as_for_one_substep():
    with pytest.raises(ConfigurationError, match="fewer than a batch of 8"):
        make(capacity=7)


def test_buffer_of_one_substep_equals_plain_buffer():
    (mine,) = make(FLAT).values()
    twin = make_buffer(FLAT, n_rollout_steps=T, batch_size=8, seed=3, capacity=1000)
    rollout, _ = World(T, has_reset_rows=False, n_envs=3).play(random_ends(np.random.default_rng(0), T, 3))
    for buffer in (mine, twin):
        buffer.insert(rollout)
    for _ in range(5):
        check_same(mine.sample(8), twin.sample(8))


def test_substeps_draw_different_entries():
    spaces = dict.fromkeys(("a", "b"), FLAT["0"])
    buffers = make(spaces)
    rollout, _ = World(T, has_reset_rows=False, n_envs=3).play(random_ends(np.random.default_rng(0), T, 3))
    keys = []
    for key, buffer in buffers.items():
        (columns,) = rollout.substeps.values()
        object.__setattr__(rollout, "substeps", {key: columns})
        buffer.insert(rollout)
        keys.append(buffer.sample(8).keys.tolist())
    assert keys[0] != keys[1]
