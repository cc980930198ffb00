"""Makes the environment for a saved policy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from rollcast.actor.environments.make import EnvironmentFactory, Vectorization
from rollcast.actor.environments.pettingzoo import AgentPolicies
from rollcast.actor.settings import DIALLED_IN, EnvironmentSettings
from rollcast.learner.settings.playing import PlayingSettings
from rollcast.services.errors import ConfigurationError


def played_environment(settings: PlayingSettings, trained: Mapping[str, Any]) -> EnvironmentFactory:
    """Returns a factory of the environment: the run's environment, unless the settings name another one.

    Args:
        settings: The command's settings.
        trained: The run's settings; empty without a run.

    Returns:
        The factory. In another environment than the run's, the policy must see what it saw in training. So the run's
        agent policies apply, and in another game its preprocessing. The run's arguments are left out, since they seldom
        fit, and the vectorization is auto.

    Raises:
        ConfigurationError: If an argument is not valid.
    """
    run_env_id = trained.get("env_id", EnvironmentSettings.model_fields["env_id"].default)
    env_id = run_env_id if settings.env_id is None else settings.env_id
    if env_id == DIALLED_IN:
        raise ConfigurationError(
            "the run's environments dialled in, so they cannot be made here; expected an environment with the same "
            "spaces; give one with --env-id"
        )
    # Runs before 0.2 have neither agent_policies nor atari; runs of `rollcast learner` have neither vectorization nor
    # on_step_failure, which are the actors'.
    own = trained if env_id == run_env_id else {}
    factory = EnvironmentFactory(
        env_id,
        own.get("env_kwargs", {}) if settings.env_kwargs is None else settings.env_kwargs,
        cast(Vectorization, settings.vectorization or own.get("vectorization", "auto")),
        cast(AgentPolicies, settings.agent_policies or trained.get("agent_policies", "shared")),
        on_step_failure=trained.get("on_step_failure", "fail"),
        atari=trained.get("atari", False) if settings.atari is None else settings.atari,
    )
    # A factory may do the preprocessing itself. Nobody who did not give --atari should have to omit it.
    is_inherited = settings.atari is None and env_id != run_env_id
    if factory.atari and is_inherited and not factory.may_be_game():
        return replace(factory, atari=False)
    return factory
