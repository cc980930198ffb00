import pytest

from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.actor.workers.make import make_worker
from rollcast.actor.workers.structured import StructuredRolloutWorker
from rollcast.services.errors import ConfigurationError
from tests.unit.actor.sample_environments import NumberedEnv
from tests.unit.actor.structured_environments import ScriptedEnv, alternating


def worker_of(env_factory, **changes):
    vector_env = make_vector_env(env_factory, 2)
    policy = RandomPolicy(environment_spaces(vector_env), seed=0)
    arguments = {"actor_id": "a", "incarnation": 2, "env_seed": 5, "first_sequence": 7, **changes}
    return make_worker(vector_env, policy, arguments.pop("n_rollout_steps", 3), **arguments)


@pytest.mark.parametrize(
    ("env_factory", "kind"),
    [(NumberedEnv, RolloutWorker), (lambda: ScriptedEnv([alternating(4)]), StructuredRolloutWorker)],
    ids=["flat", "structured"],
)
def test_makes_the_worker_that_fits_the_environments(env_factory, kind):
    worker = worker_of(env_factory)
    assert type(worker) is kind
    rollout = worker.collect()
    assert (rollout.actor_id, rollout.incarnation, rollout.sequence) == ("a", 2, 7)
    worker.close()


@pytest.mark.parametrize(
    "env_factory", [NumberedEnv, lambda: ScriptedEnv([alternating(4)])], ids=["flat", "structured"]
)
@pytest.mark.parametrize(
    ("changes", "message"), [({"n_rollout_steps": 0}, "n_rollout_steps is 0"), ({"env_seed": -1}, "env_seed is -1")]
)
def test_both_workers_reject_wrong_arguments(env_factory, changes, message: str):
    with pytest.raises(ConfigurationError, match=message):
        worker_of(env_factory, **changes)
