"""The settings class of every command. Imports neither torch nor grpc."""

from typing import Final

from rollcast.actor.settings import ActorSettings
from rollcast.learner.settings.certs import CertsSettings
from rollcast.learner.settings.compare import CompareSettings
from rollcast.learner.settings.completion import CompletionSettings
from rollcast.learner.settings.dashboard import DashboardSettings
from rollcast.learner.settings.evaluate import EvaluateSettings
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.ls import LsSettings
from rollcast.learner.settings.plot import PlotSettings
from rollcast.learner.settings.recipes_command import RecipesSettings
from rollcast.learner.settings.record import RecordSettings
from rollcast.learner.settings.relay import RelaySettings
from rollcast.learner.settings.replay_serve import ReplayServeSettings
from rollcast.learner.settings.scaler import ScalerSettings
from rollcast.learner.settings.slurm import SlurmSettings
from rollcast.learner.settings.status import DoctorSettings, StatusSettings, TopSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.settings.settings import ProcessSettings

COMMAND_SETTINGS: Final[dict[str, type[ProcessSettings]]] = {
    "train": TrainSettings,
    "learner": ServingSettings,
    "actor": ActorSettings,
    "relay": RelaySettings,
    "status": StatusSettings,
    "top": TopSettings,
    "dashboard": DashboardSettings,
    "doctor": DoctorSettings,
    "evaluate": EvaluateSettings,
    "record": RecordSettings,
    "ls": LsSettings,
    "compare": CompareSettings,
    "plot": PlotSettings,
    "recipes": RecipesSettings,
    "certs": CertsSettings,
    "scaler": ScalerSettings,
    "slurm": SlurmSettings,
    "replay": ReplayServeSettings,
    "completion": CompletionSettings,
}
