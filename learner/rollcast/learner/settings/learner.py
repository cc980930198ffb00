"""The settings of `rollcast learner`. Imports neither torch nor grpc."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from rollcast.learner.settings.learning import FIRST_OF_LEARNING, LearnerSettings
from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting


class RankSettings(BaseModel):
    """The settings of a learner that is one of several ranks; they do not affect a single learner."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backend: Literal["auto", "gloo", "nccl"] = setting(
        "auto",
        "torch.distributed's backend for gradients. auto: nccl if the learner trains on CUDA, else gloo.",
        FREE,
    )
    timeout_s: TimeoutSeconds = setting(
        120.0,
        "Seconds that a rank waits for the other ranks. After that, it ends with an error that names the missing rank.",
        FREE,
    )
    data_timeout_s: TimeoutSeconds = setting(
        5.0,
        "Seconds that a rank waits for rollouts. After that, it joins the update without rollouts, with weight 0.",
        FREE,
    )
    check_updates: AtLeastOne = setting(
        100, "Updates between two comparisons of the policies of all ranks, which must be equal.", FREE
    )


class ServingSettings(LearnerSettings):
    """Trains with the actors that connect to it, and serves the gRPC API."""

    first_options: ClassVar[tuple[str, ...]] = (
        "env_id",
        "env_kwargs",
        "address",
        "insecure",
        "max_actors",
        *FIRST_OF_LEARNING,
    )

    spaces_from: Literal["environment", "first_actor"] = setting(
        "environment",
        "Source of the observation and action spaces. environment: make --env-id once on this machine. first_actor: "
        "ask the first actor that joins, so that only actors need the environment.",
        FREE,
    )
    ingest_processes: Annotated[int, Field(ge=0, le=32)] = setting(
        0,
        "Processes of the learner that serve the connections of actors and check rollouts. The learner redirects "
        "actors to them, at the ports after that of --address; --advertised-host names another host. 0: the learner "
        "serves actors itself.",
        FREE,
    )
    when_finished: Literal["exit", "serve"] = setting(
        "exit",
        "Action when training ends. exit: end with exit code 0; serve: serve the last policy until the learner "
        "is stopped. With serve, --resume auto also resumes a finished run and serves its policy again.",
        FREE,
    )
    ranks: RankSettings = Field(
        default_factory=RankSettings, description="Several learners of one run, started by torchrun."
    )

    @property
    def advertises_host(self) -> bool:
        """True: actors are redirected to ingest processes at the advertised host."""
        return self.ingest_processes > 0
