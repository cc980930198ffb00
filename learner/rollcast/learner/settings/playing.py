"""The settings that `evaluate` and `record` share. Imports neither torch nor grpc."""

from typing import Literal

from pydantic import Field

from rollcast.services.settings.settings import EntryPointKwargs, ProcessSettings


class PlayingSettings(ProcessSettings):
    """The settings of commands that play with a run's policy: the policy and the environment."""

    saved_policy: Literal["best", "last"] = Field(
        "best", description="The policy of the run to play with: best (highest mean return) or last (newest)."
    )
    env_id: str | None = Field(
        None,
        description="The environment to play in, as for rollcast train. Default: the run's; without a run, "
        "CartPole-v1.",
    )
    env_kwargs: EntryPointKwargs | None = Field(
        None,
        description="Keyword arguments of the environment, as JSON. Default: the run's if --env-id is the run's, "
        "otherwise none.",
    )
    agent_policies: Literal["shared", "separate"] | None = Field(
        None, description="Shared or separate policies of agents, as for rollcast train. Default: the run's, or shared."
    )
    atari: bool | None = Field(
        None, description="Preprocess an Atari game, as for rollcast train. Default: the run's if it is a game, or off."
    )
    vectorization: Literal["auto", "sync", "entry_point", "subprocess", "measure"] | None = Field(
        None,
        description="The vector environment to step, as for rollcast train; a registered vector environment may have "
        "other observations than a single environment. Default: the run's, or auto.",
    )
