"""The settings of `rollcast learner`. Imports neither torch nor grpc."""

from typing import ClassVar, Literal

from pydantic import Field

from rollcast.learner.settings.learning import FIRST_OF_LEARNING, LearnerSettings
from rollcast.services.settings.resume_rules import FREE


class ServingSettings(LearnerSettings):
    """Learns from whoever joins, and serves the gRPC API."""

    first_options: ClassVar = ("env_id", "env_kwargs", "address", "insecure", "max_actors", *FIRST_OF_LEARNING)

    spaces_from: Literal["environment", "first_actor"] = Field(
        "environment",
        description="Where the learner learns what observations and actions look like: from --env-id, made once on its "
        "own machine; or from the first actor that joins, so that only actors need the environment.",
        json_schema_extra=FREE,
    )
    when_finished: Literal["exit", "serve"] = Field(
        "exit",
        description="What to do when training has ended: exit with 0; or serve the last policy until the learner is "
        "stopped. With serve, --resume auto goes on with a run that has ended, too, and serves its policy again.",
        json_schema_extra=FREE,
    )
