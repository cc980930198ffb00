"""The settings of the small commands. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.policies.policies import AUTO_NETWORK
from rollcast.services.security.settings import ClientSecuritySettings
from rollcast.services.settings.addresses import ServerAddress
from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.settings import ProcessSettings


class StatusSettings(ClientSecuritySettings):
    """Shows the status of a learner."""

    address: ServerAddress = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    watch: bool = Field(False, description="Show the status again every second until training ends.")
    actors: bool = Field(False, description="Also list the actors.")
    json_output: bool = Field(False, description="Print JSON instead of a table.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for an answer.")


class TopSettings(ClientSecuritySettings):
    """Shows a run in the terminal while it trains: the work and the waits of the learner and each actor. q ends it."""

    address: ServerAddress = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    once: bool = Field(
        False,
        description="Print the view once, without colours and with all actors, and end. This is also the default if "
        "the output is not a terminal.",
    )
    span_s: float = Field(60.0, ge=1.0, le=3600.0, description="Seconds of history that the lanes show.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for the first answer.")


class DoctorSettings(ClientSecuritySettings):
    """Finds the problems of a run, and suggests remedies.

    Asks the learner for its waits and its actors' waits, and checks whether the run learns. With the folder of a run,
    reads the run's records instead. Exits with 1 if training has stopped or an actor is missing, else with 0.
    """

    run: CliPositionalArg[Path | None] = Field(
        None, description="The folder of a run, which may have ended. Default: ask the learner at --address."
    )

    address: ServerAddress = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    json_output: bool = Field(False, description="Print JSON instead of lines.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for an answer.")


class LsSettings(ProcessSettings):
    """Lists runs, the newest first: return, evaluation, environment steps, age and state."""

    folders: CliPositionalArg[list[Path]] = Field(
        default=[Path("runs")], description="Run folders, or folders that contain runs."
    )
    json_output: bool = Field(False, description="Print JSON: a list with an object for each run.")


class CompareSettings(ProcessSettings):
    """Shows the settings in which runs differ, and the progress of each run."""

    runs: CliPositionalArg[Annotated[list[Path], Field(min_length=1)]] = Field(
        description="Run folders, or folders that contain runs; two runs or more."
    )
    json_output: bool = Field(False, description="Print JSON: an object with the values of each setting, run by run.")


class PlotSettings(ProcessSettings):
    """Draws the curves of runs. Runs that differ only in their seed share a curve: their median, with quartiles.

    If a run is solved or out of steps, its curve ends with a dot, and the median continues to use its last value. If a
    run was stopped, has failed or still trains, its curve ends with a cross, and counts only up to the cross. After the
    end of a run, the median is dashed. For a single run, eval/mean_return has the 95 % confidence intervals of its
    evaluations.
    """

    runs: CliPositionalArg[Annotated[list[Path], Field(min_length=1)]] = Field(
        description="Run folders, or folders that contain runs."
    )
    out: Path = Field(Path("curves.png"), description="The picture to write: a .png or .svg file.")
    metric: str | None = Field(
        None,
        description="The metric to draw. Default: eval/mean_return where all runs have it, else train/mean_return.",
    )
    over: Literal["env_steps", "seconds"] = Field("env_steps", description="The unit of the horizontal axis.")
    threshold: float | None = Field(None, description="Draw a line at this value, in the metric's unit. Default: none.")


class TrackSettings(ProcessSettings):
    """Sends the records and settings of a run to an experiment tracker, after or during training.

    If the run was trained with --track, the same run of the tracker continues, and contains these records twice.
    """

    run: CliPositionalArg[Path] = Field(description="The run's folder.")
    to: Literal["wandb", "trackio", "mlflow"] | None = Field(
        None, description="The tracker; each is an extra of rollcast. Default: the run's --track."
    )
    project: str | None = Field(
        None, description="The project, or experiment, that lists the run. Default: the run's --track-project."
    )


class ExportSettings(ProcessSettings):
    """Exports a policy to ONNX, with all its preprocessing, and compares the file with the policy.

    Prints inputs, outputs, the largest difference and the time of an action. Writes no file if the outputs of file and
    policy differ.
    """

    policy: CliPositionalArg[Path] = Field(description="The run's folder, or one of its .safetensors files.")
    format: Literal["onnx"] = Field("onnx", description="The format to export to.")
    output: Path | None = Field(None, description="The file to write. Default: beside the policy, with its name.")
    saved_policy: Literal["best", "last"] = Field(
        "best", description="The policy of the run to export: best (highest mean return) or last (newest)."
    )
    names: Literal["rollcast", "godot", "mlagents"] = Field(
        "rollcast",
        description="The names of inputs and outputs: rollcast's own, or those that the players of Godot RL Agents or "
        "Unity ML-Agents use.",
    )
    substep: str | None = Field(None, description="The substep to export, if there are several. Default: the only one.")
    network: str = Field(
        AUTO_NETWORK,
        description="Your own network of the policy, as package.module:factory. rollcast does not import a network "
        "that only the file names.",
    )
    check: AtLeastOne = Field(10_000, description="Number of random observations for the comparison of actions.")


class RecipesSettings(ProcessSettings):
    """Lists the recipes for `rollcast train --recipe`, or prints one: tuned settings of an algorithm for a task."""

    name: CliPositionalArg[str | None] = Field(default=None, description="The recipe to print. Default: list all.")


class CertsSettings(ProcessSettings):
    """Makes a certificate authority for development, with certificates and tokens for a learner and its clients."""

    directory: CliPositionalArg[Path] = Field(
        description="The folder to write to. Existing files are never overwritten."
    )
    host: tuple[str, ...] = Field(
        (),
        description="Another host name or IP address of the learner, besides localhost and the loopback address. "
        "Repeat the option for several.",
    )
    days: Annotated[float, Field(gt=0, le=3650)] = Field(365.0, description="Days until the certificates expire.")


class CompletionSettings(ProcessSettings):
    """Prints a script for your shell, which then completes rollcast's commands, options and values."""

    shell: CliPositionalArg[Literal["bash", "zsh"]] = Field(
        description='The shell. Put eval "$(rollcast completion bash)" into its startup file.'
    )
