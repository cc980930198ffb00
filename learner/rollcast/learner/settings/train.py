"""The settings of `rollcast train`. Imports neither torch nor grpc."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollcast.actor.settings import ActingSettings
from rollcast.learner.settings.learning import FIRST_OF_LEARNING, LearnerSettings
from rollcast.services.settings.resume_rules import ACTING, FREE, LEARNING, stays


class TrainSettings(ActingSettings, LearnerSettings):
    """Trains with actors on this machine: starts the learner and its actors, and ends with them."""

    first_options: ClassVar = ("env_id", "env_kwargs", "n_actors", *FIRST_OF_LEARNING, "log_level")

    address: str = Field(
        "localhost:0",
        description="Where to serve the API, and further actors from elsewhere, besides the local socket: host:port "
        "(port 0: any free one).",
        json_schema_extra=FREE,
    )
    bounded_staleness: bool = Field(
        True,
        description="As for a learner; on one machine policies arrive at once, so it costs little.",
        json_schema_extra=LEARNING,
    )
    n_actors: Annotated[int, Field(ge=1, le=1024)] = Field(
        2,
        description="Actor processes on this machine.",
        json_schema_extra=ACTING,
    )
    actor_kind: Literal["subprocess", "sequential"] = Field(
        "subprocess",
        description="subprocess; or sequential: in the learner's own thread, the same bits every time.",
        json_schema_extra=stays("the checkpoint has what actors of that kind leave"),
    )
    start_method: Literal["forkserver", "spawn", "fork"] | None = Field(
        None,
        description="How actor processes are started; empty: forkserver where there is one, else spawn.",
        json_schema_extra=FREE,
    )
    on_actor_failure: Literal["restart", "fail"] = Field(
        "restart",
        description="What to do when an actor fails: start it again (with backoff), or end the run.",
        json_schema_extra=FREE,
    )
    max_restarts: Annotated[int, Field(ge=0)] = Field(
        10,
        description="How often an actor may fail in a row before the run fails.",
        json_schema_extra=FREE,
    )
