"""The `rollcast` command. Imports little, because spawned actor processes import it again."""

import os
import sys
from collections.abc import Callable, Sequence

from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.services.process.exit_codes import bad_settings_exit_code
from rollcast.services.process.installation import require_extra
from rollcast.services.process.printable import log_to_stderr, printable_lines
from rollcast.services.settings.suggestions import did_you_mean
from rollcast.services.version import software_version
from rollcast.services.wire.allocator import reuse_large_buffers

USAGE = """\
usage: rollcast COMMAND [options]

Rollouts in, policies cast out: distributed reinforcement learning over gRPC.

commands:
  train      train with actors on this machine: start the learner and its actors, end them after training
  learner    train with the actors that connect, and serve the gRPC API
  actor      step environments for a learner on another machine
  relay      serve actors in the name of a learner elsewhere, for racks, sites and many actors
  status     show the status of a learner
  top        show a run in the terminal while it goes on, with what each actor does
  dashboard  serve a page for browsers that shows what learners and their actors do
  doctor     find out what is wrong with a run, and what to do
  evaluate   play episodes with a saved policy of a run
  record     record rollouts in a file: demonstrations, to fill a replay buffer with
  ls         list runs with their return, steps, age and state
  compare    show the settings in which runs differ
  plot       draw the curves of runs, with their spread, into a picture
  recipes    list the recipes: tuned settings of an algorithm for a task
  certs      make certificates and tokens for a learner and its clients, for development
  scaler     tell KEDA on Kubernetes how many actors a learner wants
  slurm      train on a Slurm cluster: submit a learner and an array of actors, or add actors
  replay     replay serve: serve a replay buffer that actors fill, for your own learner
  completion print a script that lets bash or zsh complete commands, options and values

`rollcast COMMAND --help` explains the most important settings, --help-all explains all. Give settings on the command
line, as ROLLCAST_<NAME> in the environment, or in a YAML file with --config FILE. The command line wins over the
environment, the environment over the file.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
        The exit code: 0, 1 after an error, 2 for settings that are not valid, 130 after Ctrl-C.
    """
    command, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0
    if command == "--version":
        sys.stdout.write(f"rollcast {software_version()}\n")
        return 0
    if command not in COMMANDS:
        guess = did_you_mean(command, COMMANDS)
        expected = f"expected one of {', '.join(COMMANDS)}"
        sys.stderr.write(f"rollcast: there is no command {command!r}; {expected}{f'; {guess}' if guess else ''}\n")
        return 2
    return _run(command, rest)


def _run(command: str, arguments: list[str]) -> int:
    try:
        return COMMANDS[command](arguments)
    except ConfigurationError as error:
        sys.stderr.write(printable_lines(f"rollcast {command}: {error}") + "\n")
        return bad_settings_exit_code(os.environ)
    except RollcastError as error:
        told = f"rollcast {command}: {type(error).__name__}: {error}"
        # the traceback of an environment that raised; the message refers to it
        where = getattr(error, "exception_traceback", "")
        sys.stderr.write(printable_lines(f"{told}\n{where}" if where else told) + "\n")
        return 1
    except OSError as error:
        from rollcast.learner.disk import explain_disk_error

        if (problem := explain_disk_error(error)) is None:
            raise
        sys.stderr.write(printable_lines(f"rollcast {command}: {problem}") + "\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _prepare(program: str, log_level: str) -> None:
    """Prepares the process for a command that learns, or keeps rollouts."""
    require_extra("learner", program)
    log_to_stderr(log_level)
    reuse_large_buffers()


def _train(arguments: list[str]) -> int:
    from rollcast.learner.ranks.place import refuse_ranks
    from rollcast.learner.settings.train import TrainSettings

    settings = TrainSettings.from_command_line("rollcast train", arguments)
    refuse_ranks(os.environ, "rollcast train")
    _prepare("rollcast train", settings.log_level)
    if settings.actor_kind == "subprocess" and settings.start_method in (None, "forkserver"):
        from rollcast.learner.actors.forkserver import start_forkserver

        # it starts on another core while this one imports torch
        start_forkserver()
    from rich.console import Console

    from rollcast.learner.commands.printing import lossy
    from rollcast.learner.commands.train import train

    return train(settings, Console(file=lossy(sys.stdout)))


def _learner(arguments: list[str]) -> int:
    from rollcast.learner.ranks.place import rank_place
    from rollcast.learner.settings.learner import ServingSettings

    settings = ServingSettings.from_command_line("rollcast learner", arguments)
    place = rank_place(os.environ)
    if place is not None:
        # Before torch is imported: it logs each connection that another rank closes with a trace of its own code.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    _prepare("rollcast learner", settings.log_level)
    from rich.console import Console

    from rollcast.learner.commands.learner import learner
    from rollcast.learner.commands.printing import lossy

    return learner(settings, Console(file=lossy(sys.stdout)), place)


def _actor(arguments: list[str]) -> int:
    from rollcast.actor.acting.process import main as actor_main

    return actor_main(arguments, program="rollcast actor")


def _relay(arguments: list[str]) -> int:
    from rollcast.learner.settings.relay import RelaySettings

    settings = RelaySettings.from_command_line("rollcast relay", arguments)
    require_extra("learner", "rollcast relay", "grpc_reflection")
    log_to_stderr(settings.log_level)
    reuse_large_buffers()
    from rollcast.learner.commands.relay import relay

    return relay(settings)


def _status(arguments: list[str]) -> int:
    from rollcast.learner.settings.status import StatusSettings

    settings = StatusSettings.from_command_line("rollcast status", arguments)
    from rollcast.learner.commands.status import status

    return status(settings, sys.stdout)


def _top(arguments: list[str]) -> int:
    from rollcast.learner.settings.status import TopSettings

    settings = TopSettings.from_command_line("rollcast top", arguments)
    require_extra("top", "rollcast top")
    from rollcast.learner.commands.top import top

    return top(settings, sys.stdout)


def _dashboard(arguments: list[str]) -> int:
    from rollcast.learner.settings.dashboard import DashboardSettings

    settings = DashboardSettings.from_command_line("rollcast dashboard", arguments)
    require_extra("dashboard", "rollcast dashboard")
    log_to_stderr(settings.log_level)
    from rollcast.learner.commands.dashboard import dashboard
    from rollcast.learner.commands.printing import lossy

    return dashboard(settings, lossy(sys.stdout))


def _doctor(arguments: list[str]) -> int:
    from rollcast.learner.settings.status import DoctorSettings

    settings = DoctorSettings.from_command_line("rollcast doctor", arguments)
    from rollcast.learner.commands.doctor import doctor

    return doctor(settings, sys.stdout)


def _evaluate(arguments: list[str]) -> int:
    from rollcast.learner.settings.evaluate import EvaluateSettings

    settings = EvaluateSettings.from_command_line("rollcast evaluate", arguments)
    log_to_stderr(settings.log_level)
    from rollcast.learner.commands.evaluate import evaluate

    return evaluate(settings, sys.stdout)


def _record(arguments: list[str]) -> int:
    from rollcast.learner.settings.record import RecordSettings

    settings = RecordSettings.from_command_line("rollcast record", arguments)
    log_to_stderr(settings.log_level)
    from rollcast.learner.commands.printing import lossy
    from rollcast.learner.commands.record import record

    return record(settings, lossy(sys.stdout))


def _ls(arguments: list[str]) -> int:
    from rollcast.learner.commands.ls import ls
    from rollcast.learner.settings.ls import LsSettings

    return ls(LsSettings.from_command_line("rollcast ls", arguments), sys.stdout)


def _compare(arguments: list[str]) -> int:
    from rollcast.learner.commands.compare import compare
    from rollcast.learner.settings.compare import CompareSettings

    return compare(CompareSettings.from_command_line("rollcast compare", arguments), sys.stdout)


def _plot(arguments: list[str]) -> int:
    from rollcast.learner.settings.plot import PlotSettings

    settings = PlotSettings.from_command_line("rollcast plot", arguments)
    require_extra("plot", "rollcast plot")
    from rollcast.learner.commands.plot import plot

    return plot(settings, sys.stdout)


def _recipes(arguments: list[str]) -> int:
    from rollcast.learner.commands.recipes import recipes
    from rollcast.learner.settings.recipes_command import RecipesSettings

    return recipes(RecipesSettings.from_command_line("rollcast recipes", arguments), sys.stdout)


def _certs(arguments: list[str]) -> int:
    from rollcast.learner.settings.certs import CertsSettings

    settings = CertsSettings.from_command_line("rollcast certs", arguments)
    require_extra("learner", "rollcast certs", "cryptography")
    from rollcast.learner.commands.certs import certs

    return certs(settings, sys.stdout)


def _replay(arguments: list[str]) -> int:
    what, *rest = arguments or ["nothing"]
    if what in ("-h", "--help"):
        rest = ["--help"]
    elif what != "serve":
        raise ConfigurationError(f"there is no command replay {what!r}; expected rollcast replay serve")
    from rollcast.learner.settings.replay_serve import ReplayServeSettings

    settings = ReplayServeSettings.from_command_line("rollcast replay serve", rest)
    _prepare("rollcast replay serve", settings.log_level)
    from rollcast.learner.commands.replay_serve import replay_serve

    return replay_serve(settings)


def _scaler(arguments: list[str]) -> int:
    from rollcast.learner.settings.scaler import ScalerSettings

    settings = ScalerSettings.from_command_line("rollcast scaler", arguments)
    log_to_stderr(settings.log_level)
    from rollcast.learner.commands.scaler import scaler

    return scaler(settings)


def _slurm(arguments: list[str]) -> int:
    from rollcast.learner.settings.slurm import SlurmSettings

    settings = SlurmSettings.from_command_line("rollcast slurm", arguments)
    require_extra("learner", "rollcast slurm", "cryptography")
    from rollcast.learner.commands.slurm import slurm

    return slurm(settings, sys.stdout)


def _completion(arguments: list[str]) -> int:
    from rollcast.learner.commands.completion import completion_script
    from rollcast.learner.settings.completion import CompletionSettings

    sys.stdout.write(completion_script(CompletionSettings.from_command_line("rollcast completion", arguments)))
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "learner": _learner,
    "actor": _actor,
    "relay": _relay,
    "status": _status,
    "top": _top,
    "dashboard": _dashboard,
    "doctor": _doctor,
    "evaluate": _evaluate,
    "record": _record,
    "ls": _ls,
    "compare": _compare,
    "plot": _plot,
    "recipes": _recipes,
    "certs": _certs,
    "scaler": _scaler,
    "slurm": _slurm,
    "replay": _replay,
    "completion": _completion,
}

if __name__ == "__main__":
    sys.exit(main())
