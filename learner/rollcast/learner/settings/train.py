"""The settings of `rollcast train`. Imports neither torch nor grpc."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollcast.actor.settings import ActingSettings
from rollcast.learner.settings.learning import FIRST_OF_LEARNING, LearnerSettings
from rollcast.services.settings.resume_rules import ACTING, FREE, LEARNING, stays


class TrainSettings(ActingSettings, LearnerSettings):
    """Trains with actors on this machine: starts the learner and its actors, and ends them after training."""

    first_options: ClassVar = ("env_id", "env_kwargs", "n_actors", *FIRST_OF_LEARNING, "log_level")

    address: str = Field(
        "localhost:0",
        description="The address to serve the API on, also for further actors from elsewhere: host:port (port 0: "
        "any free port). Local actors use a socket of their own.",
        json_schema_extra=FREE,
    )
    bounded_staleness: bool = Field(
        True,
        description="Make actors wait for the newest policy before each rollout. If actors are equally fast, no "
        "rollout is then more than ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / "
        "batch_size) updates old. On one machine policies arrive at once, so this costs little.",
        json_schema_extra=LEARNING,
    )
    n_actors: Annotated[int, Field(ge=1, le=1024)] = Field(
        2,
        description="Number of actors on this machine.",
        json_schema_extra=ACTING,
    )
    actor_kind: Literal["subprocess", "sequential"] = Field(
        "subprocess",
        description="subprocess: a process for each actor; sequential: all actors in the learner's own thread, "
        "which gives the same bits every time.",
        json_schema_extra=stays("the checkpoint has what actors of that kind leave"),
    )
    start_method: Literal["forkserver", "spawn", "fork"] | None = Field(
        None,
        description="Start method of actor processes. Default: forkserver where available, else spawn.",
        json_schema_extra=FREE,
    )
    on_actor_failure: Literal["restart", "fail"] = Field(
        "restart",
        description="Action when an actor fails. restart: start it again, after a growing delay; fail: end the run.",
        json_schema_extra=FREE,
    )
    max_restarts: Annotated[int, Field(ge=0)] = Field(
        10,
        description="Times that an actor is started again after failures in a row; the next failure ends the "
        "run. 0: the first failure ends it.",
        json_schema_extra=FREE,
    )
