import functools
from typing import Any

import pytest
import torch

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.services.errors import CollectInterruptedError, ConfigurationError
from rollcast.services.joining.evaluation import EvaluationPlan
from tests.actor_kinds import make_policy_for
from tests.environments import CountingEnv


def test_evaluation_is_played_at_once_and_its_error_lets_training_go_on(caplog: pytest.LogCaptureFixture):
    plan = EvaluationPlan(n_episodes=2, seed=0)
    env_factory = EnvironmentFactory("tests.environments:CountingEnv")
    with SequentialDistributedActors(env_factory, make_policy_for(env_factory), 2, 2, 1, evaluation=plan) as actors:
        actors.evaluate_newest(7)
        (result,) = actors.take_evaluations()
        assert (result.policy.version, result.policy.env_steps, len(result.evaluation.returns)) == (1, 7, 2)
        assert actors.take_evaluations() == []
    env_factory = EnvironmentFactory("tests.environments:FailingEnv", {"fail_at": 1})
    with SequentialDistributedActors(env_factory, make_policy_for(env_factory), 2, 2, 1, evaluation=plan) as actors:
        actors.evaluate_newest(7)
        assert actors.take_evaluations() == []
        assert "has lost its licence" in actors.evaluators.last_error
    assert "the evaluation of version 1 failed" in caplog.text


def test_interrupted_evaluation_ends_at_once():
    env_factory = EnvironmentFactory("tests.environments:CountingEnv")
    plan = EvaluationPlan(n_episodes=2, seed=0)
    with SequentialDistributedActors(env_factory, make_policy_for(env_factory), 2, 2, 1, evaluation=plan) as actors:
        actors.interrupt()
        with pytest.raises(CollectInterruptedError):
            actors.evaluate_newest(7)


def test_error_of_an_environment_has_the_name_of_its_actor():
    env_factory = EnvironmentFactory("tests.environments:FailingEnv", {"fail_at": 3})
    actors = SequentialDistributedActors(env_factory, make_policy_for(env_factory), 2, 2, 1)
    with actors:
        actors.next_slice(1)
        actors.next_slice(1)
        with pytest.raises(
            EnvironmentFailedError, match=r"^actor sequential-0 failed: .*has lost its licence"
        ) as raised:
            actors.next_slice(1)
    assert raised.value.exception_type == "RuntimeError"


class DoublingEnv(CountingEnv):
    """Changes torch's default dtype when it is made, or when it is reset."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self._when = when
        if when == "made":
            torch.set_default_dtype(torch.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._when == "reset":
            torch.set_default_dtype(torch.float64)
        return super().reset(seed=seed)


@pytest.mark.parametrize("when", ["made", "reset"])
def test_another_default_dtype_of_torch_is_named_before_it_breaks_an_update(when: str):
    def play() -> None:
        env_factory = functools.partial(DoublingEnv, when)
        with SequentialDistributedActors(env_factory, make_policy_for(env_factory), 2, 1, 1) as actors:
            actors.next_slice(1)

    try:
        with pytest.raises(ConfigurationError, match=r"torch's default dtype is torch\.float64 .* in the environment"):
            play()
    finally:
        torch.set_default_dtype(torch.float32)
