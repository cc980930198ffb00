"""The table of `rollcast`'s commands: a row names the settings, requirements and function of a command.

Imports only Python's standard library; the modules of a row are imported on demand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rollcast.services.settings.settings import ProcessSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of `rollcast`.

    Attributes:
        summary: The purpose of the command; a line of `rollcast --help`.
        settings_from: The class of the command's settings, "package.module:Class".
        runs: The function that runs the command, "package.module:function": takes settings and output, returns the exit
            code.
        subcommand: The word that must follow; empty: none.
        extra: The extra of pyproject.toml that the command needs; empty: none.
        modules: The modules of the extra that the command imports; empty: all modules of the extra.
        logs: True: the command logs to stderr, at the `log_level` of its settings.
        outlives_output: True: the command continues after its terminal is closed or the reader of its output has ended.
        has_large_buffers: True: the command carries rollouts, so its process reuses the memory of freed buffers.
    """

    summary: str
    settings_from: str
    runs: str
    subcommand: str = ""
    extra: str = ""
    modules: tuple[str, ...] = ()
    logs: bool = False
    outlives_output: bool = False
    has_large_buffers: bool = False

    def settings(self) -> "type[ProcessSettings]":
        """Imports and returns the class of the command's settings."""
        settings: type[ProcessSettings] = _imported(self.settings_from)
        return settings

    def function(self) -> "Callable[[ProcessSettings, IO[str]], int]":
        """Imports and returns the function that runs the command."""
        function: Callable[[ProcessSettings, IO[str]], int] = _imported(self.runs)
        return function


def _imported(name: str) -> Any:  # noqa: ANN401 - callers declare the type
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


_SETTINGS: Final = "rollcast.tools.settings"

COMMANDS: Final[dict[str, Command]] = {
    "train": Command(
        summary="train with actors on this machine: start the learner and its actors, end them after training",
        settings_from="rollcast.learner.settings.train:TrainSettings",
        runs="rollcast.tools.training:train_here",
        extra="learner",
        logs=True,
        outlives_output=True,
        has_large_buffers=True,
    ),
    "learner": Command(
        summary="train with the actors that connect, and serve the gRPC API",
        settings_from="rollcast.learner.settings.learner:ServingSettings",
        runs="rollcast.tools.training:serve_actors",
        extra="learner",
        logs=True,
        outlives_output=True,
        has_large_buffers=True,
    ),
    "actor": Command(
        summary="step environments for a learner on another machine",
        settings_from="rollcast.actor.settings:ActorSettings",
        runs="rollcast.actor.acting.process:act",
        logs=True,
    ),
    "relay": Command(
        summary="forward rollouts of many actors to a learner, and policies to the actors",
        settings_from="rollcast.tools.relay.settings:RelaySettings",
        runs="rollcast.tools.relay.command:relay",
        extra="learner",
        modules=("grpc_reflection",),
        logs=True,
        has_large_buffers=True,
    ),
    "status": Command(
        summary="show the status of a learner",
        settings_from=f"{_SETTINGS}:StatusSettings",
        runs="rollcast.tools.status:status",
    ),
    "top": Command(
        summary="show a run in the terminal while it trains, with each actor's work",
        settings_from=f"{_SETTINGS}:TopSettings",
        runs="rollcast.tools.top.command:top",
        extra="top",
    ),
    "dashboard": Command(
        summary="serve a web page that shows the state of learners and their actors",
        settings_from="rollcast.tools.dashboard.settings:DashboardSettings",
        runs="rollcast.tools.dashboard.command:dashboard",
        extra="dashboard",
        logs=True,
        outlives_output=True,
    ),
    "doctor": Command(
        summary="find the problems of a run, and suggest remedies",
        settings_from=f"{_SETTINGS}:DoctorSettings",
        runs="rollcast.tools.doctor.command:doctor",
    ),
    "evaluate": Command(
        summary="play episodes with a saved policy of a run",
        settings_from="rollcast.learner.settings.evaluate:EvaluateSettings",
        runs="rollcast.learner.commands.evaluate:evaluate",
        logs=True,
    ),
    "export": Command(
        summary="export a policy to ONNX, for other languages and game engines",
        settings_from=f"{_SETTINGS}:ExportSettings",
        runs="rollcast.tools.export:export",
        extra="onnx",
    ),
    "serve-policy": Command(
        summary="serve a policy: answer programs in any language with actions",
        settings_from="rollcast.tools.policy_server.settings:ServePolicySettings",
        runs="rollcast.tools.policy_server.command:serve_policy",
        extra="learner",
        modules=("grpc_reflection",),
        logs=True,
    ),
    "record": Command(
        summary="record rollouts in a file, as demonstrations for a replay buffer",
        settings_from="rollcast.learner.settings.record:RecordSettings",
        runs="rollcast.learner.commands.record:record",
        logs=True,
        outlives_output=True,
    ),
    "ls": Command(
        summary="list runs with their return, steps, age and state",
        settings_from=f"{_SETTINGS}:LsSettings",
        runs="rollcast.tools.runs.ls:ls",
    ),
    "compare": Command(
        summary="show the settings in which runs differ",
        settings_from=f"{_SETTINGS}:CompareSettings",
        runs="rollcast.tools.runs.compare:compare",
    ),
    "plot": Command(
        summary="draw the learning curves of runs, with their spread, as a picture",
        settings_from=f"{_SETTINGS}:PlotSettings",
        runs="rollcast.tools.runs.plot:plot",
        extra="plot",
    ),
    "track": Command(
        summary="upload the records of an existing run to Weights & Biases, Trackio or MLflow",
        settings_from=f"{_SETTINGS}:TrackSettings",
        runs="rollcast.tools.runs.track:track",
    ),
    "recipes": Command(
        summary="list the recipes: tuned settings of an algorithm for a task",
        settings_from=f"{_SETTINGS}:RecipesSettings",
        runs="rollcast.tools.recipes:recipes",
    ),
    "certs": Command(
        summary="make certificates and tokens for a learner and its clients, for development",
        settings_from=f"{_SETTINGS}:CertsSettings",
        runs="rollcast.tools.certificates:certs",
        extra="learner",
        modules=("cryptography",),
    ),
    "scaler": Command(
        summary="tell KEDA on Kubernetes how many actors a learner wants",
        settings_from="rollcast.tools.scaling.settings:ScalerSettings",
        runs="rollcast.tools.scaling.command:scaler",
        extra="learner",
        modules=("grpc_reflection",),
        logs=True,
    ),
    "slurm": Command(
        summary="train on a Slurm cluster: submit a learner and an array of actors, or add actors",
        settings_from="rollcast.tools.slurm.settings:SlurmSettings",
        runs="rollcast.tools.slurm.command:slurm",
        extra="learner",
        modules=("cryptography",),
    ),
    "replay": Command(
        summary="replay serve: serve a replay buffer that actors fill, for your own learner",
        settings_from="rollcast.learner.settings.replay_serve:ReplayServeSettings",
        runs="rollcast.learner.commands.replay_serve:replay_serve",
        subcommand="serve",
        extra="learner",
        logs=True,
        has_large_buffers=True,
    ),
    "completion": Command(
        summary="print a script that lets bash or zsh complete commands, options and values",
        settings_from=f"{_SETTINGS}:CompletionSettings",
        runs="rollcast.tools.completion:completion",
    ),
}
