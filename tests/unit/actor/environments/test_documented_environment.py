"""The environment of docs/environments.md, as it stands there."""

import re
from pathlib import Path

from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.structured import StructuredRolloutWorker

PAGE = Path(__file__).parents[4] / "docs" / "environments.md"


def test_documented_environment_can_be_played():
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, type] = {}
    exec(program, names)
    vector_env = StructuredVectorEnv([names["ToolBench"]] * 2)
    policy = RandomPolicy(vector_env.spaces, seed=0)
    policy.load(0, {})
    worker = StructuredRolloutWorker(vector_env, policy, 20, actor_id="a", incarnation=1, env_seed=0)
    choose, use = worker.collect(), worker.collect()
    assert (list(choose.substeps), list(use.substeps)) == (["choose"], ["use"])
    assert (choose.reward == use.reward).all()
    assert [episode.n_steps for episode in choose.episodes] == [10] * 4
    assert 0 < choose.reward.sum() < 20
