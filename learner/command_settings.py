"""The settings of every command. Imports neither torch nor grpc."""

from typing import Final

from actor.settings import ActorSettings
from learner.record_settings import RecordSettings
from learner.replay_serve_settings import ReplayServeSettings
from learner.settings import (
    CertsSettings,
    CompletionSettings,
    DoctorSettings,
    EvaluateSettings,
    ServingSettings,
    StatusSettings,
    TrainSettings,
)
from services.settings import ProcessSettings

COMMAND_SETTINGS: Final[dict[str, type[ProcessSettings]]] = {
    "train": TrainSettings,
    "learner": ServingSettings,
    "actor": ActorSettings,
    "status": StatusSettings,
    "doctor": DoctorSettings,
    "evaluate": EvaluateSettings,
    "record": RecordSettings,
    "certs": CertsSettings,
    "replay": ReplayServeSettings,
    "completion": CompletionSettings,
}
