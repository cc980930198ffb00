"""What the settings of the commands that play with a run's policy have in common. Imports neither torch nor grpc."""

from typing import Literal

from pydantic import Field

from rollcast.services.settings.settings import EntryPointKwargs, ProcessSettings


class PlayingSettings(ProcessSettings):
    """Which of a run's policies plays, in which environment."""

    saved_policy: Literal["best", "last"] = Field(
        "best", description="Which of the run's policies: the one that earned most (best), or the newest (last)."
    )
    env_id: str | None = Field(
        None,
        description="The environment to play, as of rollcast train. Default: the run's; without a run, CartPole-v1.",
    )
    env_kwargs: EntryPointKwargs | None = Field(
        None, description="Its keyword arguments, as JSON. Default: those of the run, or none."
    )
    agent_policies: Literal["shared", "separate"] | None = Field(
        None, description="As of rollcast train. Default: the run's, or shared."
    )
    vectorization: Literal["auto", "sync", "entry_point", "subprocess", "measure"] | None = Field(
        None,
        description="Which vector environment is stepped, as of rollcast train: the one that is registered with an "
        "environment may show it in another way. Default: the run's, or auto.",
    )
