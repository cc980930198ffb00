"""The settings of `rollcast replay serve`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from rollcast.actor.settings import EnvironmentSettings, EnvsPerActor
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.limits.limits import MAX_FRAME_STACK
from rollcast.services.limits.settings import ServerLimitSettings
from rollcast.services.metrics.settings import MetricsSettings
from rollcast.services.security.settings import ServerSecuritySettings
from rollcast.services.server.settings import AnnouncementSettings
from rollcast.services.settings.addresses import ListeningAddress
from rollcast.services.settings.numbers import AtLeastOne, Seed, ZeroToOne
from rollcast.services.settings.settings import LogLevel


class ReplayServeSettings(
    EnvironmentSettings, ServerSecuritySettings, AnnouncementSettings, ServerLimitSettings, MetricsSettings
):
    """Serves a replay buffer without a learner: actors fill it with random actions, and other processes sample it."""

    first_options: ClassVar = (
        *("env_id", "env_kwargs", "address", "insecure", "max_actors", "spaces_from", "initial_data"),
        *("replay.capacity", "replay.entry", "replay.sampler", "replay.n_step", "replay.samples_per_insert"),
        *("replay.min_size", "n_rollout_steps", "batch_size", "envs_per_actor", "discount", "seed", "log_level"),
    )

    address: ListeningAddress = Field(
        "localhost:50051", description="The address to listen on: host:port (port 0: any free port) or unix:/path."
    )
    spaces_from: Literal["environment", "first_actor"] = Field(
        "environment",
        description="Source of the observation and action spaces. environment: make --env-id once on this "
        "machine. first_actor: ask the first actor that joins, so that only actors need the "
        "environment.",
    )
    replay: ReplaySettings = Field(default_factory=ReplaySettings, description="The replay buffer.")
    initial_data: Path | None = Field(
        None,
        description="A file of rollouts, written by rollcast record, that fills the buffer before it is served. "
        "Default: start empty.",
    )
    network: str = Field(
        "auto",
        description="The policy network of the actors: auto, or package.module:factory. Actors of this server act at "
        "random, but join only a server with the same network name.",
    )
    frame_stack: Annotated[int, Field(ge=1, le=MAX_FRAME_STACK)] = Field(
        1,
        description="K: samples have the last K frames at once, as with gymnasium's FrameStackObservation, for a "
        "policy that sees K frames. The environment gives single frames, and the buffer keeps each frame once.",
    )
    n_rollout_steps: AtLeastOne = Field(32, description="T: environment steps in a rollout.")
    envs_per_actor: EnvsPerActor = Field(
        64, description="Environments that an actor steps at once, unless the actor sets another number."
    )
    batch_size: AtLeastOne = Field(
        256,
        description="Entries in a batch. Without --replay.min-size, sampling starts with this many entries. With "
        "--replay.samples-per-insert, no batch may have more entries.",
    )
    discount: ZeroToOne = Field(0.99, description="Discount gamma of n-step transitions, in [0, 1].")
    seed: Seed = Field(0, description="The seed from which the seeds of actors and sampling derive.")
    first_actor_timeout_s: Annotated[float, Field(gt=0, le=86400)] = Field(
        600.0, description="With --spaces-from first_actor: seconds to wait for the first actor."
    )
    log_level: LogLevel = Field("INFO", description="Least severe messages to log, on stderr.")

    @field_validator("replay")
    @classmethod
    def _check_device(cls, replay: ReplaySettings) -> ReplaySettings:
        """Refuses a learner's device, because there is no learner; pydantic turns the ValueError into its own error."""
        if replay.device != "cpu":
            raise ValueError(
                f"device is {replay.device!r}, but replay serve has no learner; expected 'cpu'; leave "
                "--replay.device out"
            )
        return replay
