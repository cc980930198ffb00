"""The settings of `rollcast learner`. Imports neither torch nor grpc."""

from typing import ClassVar, Literal

from pydantic import Field

from rollcast.learner.settings.learning import FIRST_OF_LEARNING, LearnerSettings
from rollcast.learner.settings.ranks import RankSettings
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting


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
        "Source of the observation and action spaces. environment: make --env-id once on this machine; "
        "first_actor: ask the first actor that joins, so that only actors need the environment.",
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
