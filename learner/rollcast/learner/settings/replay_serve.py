"""The settings of `rollcast replay serve`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from rollcast.actor.settings import EnvironmentSettings, EnvsPerActor
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.limits.settings import ServerLimitSettings
from rollcast.services.security.settings import ServerSecuritySettings
from rollcast.services.settings.settings import LogLevel


class ReplayServeSettings(EnvironmentSettings, ServerSecuritySettings, ServerLimitSettings):
    """Serves a replay buffer alone: actors fill it, acting at random, and learners elsewhere draw from it."""

    first_options: ClassVar = (
        *("env_id", "env_kwargs", "address", "insecure", "max_actors", "spaces_from", "initial_data"),
        *("replay.capacity", "replay.entry", "replay.sampler", "replay.n_step", "replay.samples_per_insert"),
        *("replay.min_size", "n_rollout_steps", "batch_size", "envs_per_actor", "discount", "seed", "log_level"),
    )

    address: str = Field(
        "localhost:50051", description="Where to listen: host:port (port 0: any free one) or unix:/path."
    )
    spaces_from: Literal["environment", "first_actor"] = Field(
        "environment",
        description="Where it learns what observations and actions look like: from --env-id, made once here; or from "
        "the first actor that joins, so that only actors need the environment.",
    )
    replay: ReplaySettings = Field(default_factory=ReplaySettings, description="The buffer.")
    initial_data: Path | None = Field(
        None,
        description="Fill the buffer from this file of rollouts, which rollcast record writes, before it is served.",
    )
    network: str = Field(
        "auto",
        description="The policy network that actors were started with: auto, or package.module:factory. They act at "
        "random all the same, but join nobody who names another.",
    )
    n_rollout_steps: Annotated[int, Field(ge=1)] = Field(32, description="T: environment steps in a rollout.")
    envs_per_actor: EnvsPerActor = Field(
        64, description="Environments an actor steps at once that was not started with a number of its own."
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        256,
        description="Entries in the batches that are to be drawn: the least there have to be, unless --replay.min-size "
        "says so, and with --replay.samples-per-insert the largest that can be drawn.",
    )
    discount: Annotated[float, Field(ge=0, le=1)] = Field(0.99, description="gamma, in [0, 1], for n-step folding.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="From which the seeds of the actors, and of what is drawn, derive."
    )
    first_actor_timeout_s: Annotated[float, Field(gt=0, le=86400)] = Field(
        600.0, description="With --spaces-from first_actor: seconds to wait for it."
    )
    log_level: LogLevel = Field("INFO", description="What to log, to stderr.")

    @field_validator("replay")
    @classmethod
    def _check_device(cls, replay: ReplaySettings) -> ReplaySettings:
        """Refuses the device of a learner, because none is here; pydantic makes its own error of ours."""
        if replay.device != "cpu":
            raise ValueError(
                f"device is {replay.device!r}, and a buffer that is served alone has no learner beside it; expected "
                "'cpu'; leave --replay.device out"
            )
        return replay
