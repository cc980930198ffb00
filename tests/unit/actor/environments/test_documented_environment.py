"""The environments of the how-to guides, as they stand there."""

import numpy as np

from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.structured import StructuredVectorEnv
from tests.documents import blocks, text_of
from tests.unit.actor.workers.flat_workers import worker_of


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
