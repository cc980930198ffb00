"""The environments of README, tutorials and how-to guides, as they stand there."""

import itertools
import re

import gymnasium
import numpy as np
import pytest

from rollcast.actor.entry_points import load_entry_point
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.services import ConfigurationError
from tests.documents import PAGES, blocks, text_of
from tests.unit.actor.workers.flat_workers import worker_of


def programs(page: str) -> list[str]:
    """Returns the programs of a page that import gymnasium, those that a shell writes to a file included."""
    text = text_of(page)
    shown = (*blocks(text, "python"), *re.findall(r"\.py <<END\n(.*?)^END$", text, re.MULTILINE | re.DOTALL))
    return [program for program in shown if re.search("^(import|from) gymnasium", program, re.MULTILINE)]


ENVIRONMENTS = [
    (page, name, program)
    for page in PAGES
    for program in programs(page)
    for name in re.findall(r"^class (\w+)\((?:gymnasium\.)?Env\)", program, re.MULTILINE)
]


def documented(name: str, page: str) -> type:
    """Returns a class that a guide shows."""
    programs = blocks(text_of(page), "python")
    (program,) = (program for program in programs if f"class {name}(" in program)
    names: dict[str, type] = {}
    exec(program, names)
    return names[name]


def test_documented_environment_can_be_played():
    vector_env = StructuredVectorEnv([documented("ToolBench", "several_agents.md")] * 2)
    worker = worker_of(vector_env, 20)
    choose, use = worker.collect(), worker.collect()
    assert (list(choose.substeps), list(use.substeps)) == (["choose"], ["use"])
    assert (choose.reward == use.reward).all()
    assert [episode.n_steps for episode in choose.episodes] == [10] * 4
    assert 0 < choose.reward.sum() < 20


def test_documented_curriculum_grows_with_the_progress_at_the_next_reset():
    vector_env = SequentialVectorEnv([documented("Corridor", "curriculum.md")])
    found = []
    for progress in (None, 0.0, 0.5, 1.0):
        if progress is not None:
            vector_env.set_progress(progress)
        observation, _ = vector_env.reset(seed=0)
        found.append(int(observation[0, 1]))
    assert found == [20, 3, 12, 20]
    vector_env.set_progress(0.0)
    observation, *_ = vector_env.step(np.array([1]))
    assert observation.tolist() == [[1, 20]], "the episode under way stays as it is"


def test_pages_show_environments():
    assert {(page, name) for page, name, _ in ENVIRONMENTS} >= {("README.md", "Reach"), ("own_environment.md", "Catch")}


@pytest.mark.parametrize(("page", "name", "program"), ENVIRONMENTS, ids=[name for _, name, _ in ENVIRONMENTS])
def test_each_episode_ends_whatever_the_policy_does(page: str, name: str, program: str):
    """Otherwise `rollcast evaluate`, which the summary of a run recommends, may never end."""
    names: dict[str, type[gymnasium.Env]] = {}
    exec(program, names)
    env = names[name]()
    for seed, action in itertools.product(range(20), range(env.action_space.n)):
        env.reset(seed=seed)
        assert any(any(env.step(action)[2:4]) for _ in range(100)), f"{page}: seed {seed}, action {action}"


@pytest.mark.parametrize(
    ("page", "load", "module"),
    [
        ("own_environment.md", lambda: EnvironmentFactory("catch:make")(), "catch"),
        ("own_training_loop.md", lambda: load_entry_point("a2c:ActorCritic"), "a2c"),
    ],
)
def test_a_page_quotes_what_rollcast_says_in_another_folder(page, load, module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        load()
    (quoted,) = re.findall(rf"^> - \*\*`(.* module .*'{module}')`\*\*", text_of(page), re.MULTILINE)
    assert quoted in str(raised.value)
