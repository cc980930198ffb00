"""The settings of `rollcast slurm`. Imports neither torch nor grpc."""

import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, Field, NonNegativeInt, model_validator

from rollcast.actor.settings import ActingSettings
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.learning import FIRST_OF_LEARNING
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.policies.policies import PolicyEncodingName
from rollcast.services.settings.addresses import ListeningAddress
from rollcast.services.settings.help_text import HelpScope
from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.options import option_name
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import LogLevel
from rollcast.tools.slurm.scripts import Resources, quoted_value

# The scripts give these to the learner; certificates and tokens are made for each run.
_MADE_HERE: Final = (
    *("tls_cert", "tls_key", "tls_client_ca", "tokens_file", "insecure"),
    *("address_file", "advertised_host", "tls_server_name"),
)
# The most actors, including those that are added later.
_MOST_ACTORS: Final = 4096

_TIME: Final = re.compile(
    r"[0-9]+(:[0-9]{1,2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}|[Uu][Nn][Ll][Ii][Mm][Ii][Tt][Ee][Dd]"
)
# Slurm may send the signal to stop by this many seconds too early.
_EARLY_S: Final = 60
_MEMORY: Final = re.compile(r"[0-9]+[KMGT]?")
_GPUS: Final = re.compile(r"([A-Za-z][\w.-]*:)?[0-9]+(,[A-Za-z][\w.-]*:[0-9]+)*")
_NAME: Final = re.compile(r"[\w.,+-]*")
# The sbatch options that --time and --signal-s set, which together leave time to train.
_SET_HERE: Final = re.compile(r"-t|--(?P<name>time|signal)(?![\w-])")


def _check_name(value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise ValueError("not a name; expected letters, digits and '_.+-', and commas between several")
    return value


def _check_time(value: str) -> str:
    if value and _TIME.fullmatch(value) is None:
        raise ValueError(
            "not a time limit of Slurm; expected MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS, such as 8:00:00"
        )
    return value


def _seconds(time: str) -> float:
    """Returns the seconds of a time limit: MINUTES[:SECONDS], HOURS:MINUTES:SECONDS or DAYS-HOURS[:MINUTES...].

    Slurm takes a limit of zero for no limit.
    """
    if not time[0].isdecimal():
        return math.inf
    days, dash, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds or math.inf


def _check_memory(value: str) -> str:
    if value and _MEMORY.fullmatch(value) is None:
        raise ValueError("not a memory size; expected a number of megabytes, or a number with a unit, such as 16G")
    return value


def _check_gpus(value: str) -> str:
    if value and _GPUS.fullmatch(value) is None:
        raise ValueError("not a number of GPUs; expected one, or TYPE:NUMBER, such as 1 or a100:2")
    return value


def _check_extra(value: str) -> str:
    try:
        options = _extra_options(value)
    except ValueError as error:
        raise ValueError(f"a quote is not closed ({error}); expected sbatch options; close the quote") from error
    wrong = [option for option in options if not option.startswith("-") or not option.isprintable()]
    if wrong:
        raise ValueError(
            f"{wrong[0]!r} is not an option; expected sbatch options, such as '--exclude=node7 --mail-type=END'"
        )
    for option in options:
        if own := _SET_HERE.match(option):
            name = "--signal-s" if own["name"] == "signal" else "--time"
            raise ValueError(f"{option!r} is set by {name}; expected other sbatch options; give {name} instead")
    return value


def _extra_options(value: str) -> list[str]:
    """Returns sbatch options, each with its value: `-C fast --exclusive` gives two."""
    options: list[str] = []
    for word in shlex.split(value):
        name, equals, given = word.partition("=") if word.startswith("--") else ("", "", word)
        quoted = f"{name}{equals}{quoted_value(given)}"
        if word.startswith("-") or not options:
            options.append(quoted)
        else:
            options[-1] += f" {quoted}"
    return options


_Name = Annotated[str, AfterValidator(_check_name)]
_Time = Annotated[str, AfterValidator(_check_time)]
_Memory = Annotated[str, AfterValidator(_check_memory)]
_Gpus = Annotated[str, AfterValidator(_check_gpus)]
_Extra = Annotated[str, AfterValidator(_check_extra)]


class SlurmSettings(ActingSettings, ServingSettings):
    """Trains on a Slurm cluster: writes and submits a job for the learner and an array of jobs for the actors."""

    first_options: ClassVar[tuple[str, ...]] = (
        *("actors", "dry_run", "add_actors", "env_id", "env_kwargs", "partition", "actor_partition", "account", "qos"),
        *("time", "gpus", "learner_cpus", "learner_mem", "actor_cpus", "actor_mem", "sbatch", "learner_sbatch"),
        *("actor_sbatch", "prolog", "template", "signal_s", *FIRST_OF_LEARNING),
    )

    actors: Annotated[int, Field(ge=1, le=_MOST_ACTORS)] = setting(4, "Number of actors: tasks of the array.", FREE)
    evaluators: NonNegativeInt | None = setting(
        None,
        "Number of evaluators, in a separate array. Default: 1 with --eval-interval-s or --eval-interval-steps, "
        "else none.",
        FREE,
    )
    dry_run: bool = setting(False, "Print the scripts and the commands, and neither write nor submit anything.", FREE)
    add_actors: Annotated[int, Field(ge=1, le=_MOST_ACTORS)] | None = setting(
        None, "Add this many actors to the run in --run-dir, and do nothing else. Default: submit a run.", FREE
    )
    partition: _Name = setting("", "The partition of all jobs. Default: the cluster's.", FREE)
    actor_partition: _Name = setting("", "The partition of the actors. Default: --partition.", FREE)
    account: _Name = setting("", "The account to charge. Default: your default on the cluster.", FREE)
    qos: _Name = setting("", "The quality of service. Default: your default on the cluster.", FREE)
    time: _Time = setting(
        "",
        "The time limit of each job: MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS. Before the limit, the learner "
        "writes a checkpoint, and Slurm queues its job again. Default: the partition's.",
        FREE,
    )
    gpus: _Gpus = setting("", "GPUs of the learner: a number, or TYPE:NUMBER. Default: none.", FREE)
    learner_cpus: AtLeastOne = setting(4, "Cores of the learner.", FREE)
    learner_mem: _Memory = setting("", "Memory of the learner, such as 16G. Default: the cluster's.", FREE)
    actor_cpus: AtLeastOne = setting(1, "Cores of each actor.", FREE)
    actor_mem: _Memory = setting("", "Memory of each actor, such as 2G. Default: the cluster's.", FREE)
    sbatch: _Extra = setting(
        "", "Further sbatch options for all jobs: '--exclude=node7 --mail-type=END'. Default: none.", FREE
    )
    learner_sbatch: _Extra = setting("", "Further sbatch options for the learner. Default: none.", FREE)
    actor_sbatch: _Extra = setting("", "Further sbatch options for actors and evaluators. Default: none.", FREE)
    prolog: str = setting(
        "", "Lines of shell before each process: 'module load cuda; conda activate rl'. Default: none.", FREE
    )
    template: Path | None = setting(
        None,
        "Your own batch script, with the lines @DIRECTIVES@, @PROLOG@ and @COMMAND@. Default: rollcast's.",
        FREE,
    )
    signal_s: Annotated[int, Field(ge=10, le=65_535)] = setting(
        120,
        "Seconds from Slurm's stop signal to a job's time limit. Slurm may send the signal up to a minute earlier.",
        FREE,
    )
    max_restarts: NonNegativeInt = setting(
        10, "Number of restarts of an actor's job, for any reason. After that, a failure ends the job.", FREE
    )
    patience_s: TimeoutSeconds = setting(
        600.0,
        "Seconds that an actor waits for its learner. After that, Slurm queues the actor again if the learner's "
        "job is also queued.",
        FREE,
    )
    policy_encoding: PolicyEncodingName = setting(
        "full", "Encoding of policies for actors and evaluators, as for rollcast actor.", FREE
    )
    address: ListeningAddress = setting(
        "0.0.0.0:0", "The address on which the learner listens: host:port (port 0: any free port).", FREE
    )
    collect_timeout_s: TimeoutSeconds = setting(
        86_400.0,
        "Seconds without a rollout after which training fails, unless an actor is playing one. Actors may wait long in "
        "Slurm's queue.",
        FREE,
    )
    stop_timeout_s: TimeoutSeconds = setting(
        90.0, "Seconds that the last checkpoint of a stopped run may take. It must be below --signal-s.", FREE
    )
    log_level: LogLevel = setting("INFO", "Least severe messages in the logs.", FREE)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuses settings that contradict each other; pydantic turns the ValueError into its own error."""
        if self.stop_timeout_s >= self.signal_s:
            raise ValueError(
                f"stop_timeout_s is {self.stop_timeout_s:g} and signal_s {self.signal_s}; expected the last checkpoint "
                "to be written before the time limit; give a larger --signal-s, or a smaller --stop-timeout-s"
            )
        if self.time and _seconds(self.time) <= self.signal_s + _EARLY_S:
            raise ValueError(
                f"time is {self.time!r}, {_seconds(self.time):g} s, and signal_s {self.signal_s}; expected more than "
                f"{self.signal_s + _EARLY_S} s, since Slurm may tell a job to stop {_EARLY_S} s earlier still, and the "
                "learner would be requeued again and again without training; give a longer --time "
                "(HOURS:MINUTES:SECONDS), or a smaller --signal-s"
            )
        if self.add_actors is not None and self.run_dir is None:
            raise ValueError(
                "--add-actors is given without --run-dir; expected the folder of a run that rollcast slurm has "
                "submitted; give that folder"
            )
        return self

    @classmethod
    def help_scope(cls, origins: Origins) -> HelpScope:
        """Returns the options of the chosen algorithm, except the options that this command sets itself."""
        scope = super().help_scope(origins)
        return HelpScope(hidden=(*scope.hidden, *_MADE_HERE), defaults=scope.defaults, note=scope.note)

    def completed(self, origins: Origins) -> Self:
        """Returns the settings of the run; --max-actors admits its actors, and more that are added later.

        Raises:
            ConfigurationError: As for `LearnerSettings.completed`; or an option is given that this command sets itself;
                or the learner would not admit that many actors.
        """
        for name in _MADE_HERE:
            if origins.options_in((name,)) or name in origins.from_file:
                raise ConfigurationError(
                    f"{option_name((name,))}: rollcast slurm makes certificates, tokens and the address file of each "
                    "run itself; expected none; remove the option"
                )
        settings = super().completed(origins)
        wanted = settings.actors + settings.n_evaluators()
        if "max_actors" not in self.model_fields_set:
            room = (
                settings.actors if settings.deterministic else min(_MOST_ACTORS, max(settings.max_actors, 2 * wanted))
            )
            settings = settings.model_copy(update={"max_actors": room})
        if wanted > settings.max_actors and not settings.deterministic:
            raise ConfigurationError(
                f"--max-actors: {settings.max_actors} are below {settings.actors} --actors and "
                f"{settings.n_evaluators()} evaluators; expected at least {wanted}; raise it, or remove it"
            )
        return settings

    def n_evaluators(self) -> int:
        """Returns the number of evaluators."""
        if self.evaluators is not None:
            return self.evaluators
        return 0 if self.eval_interval_s is None and self.eval_interval_steps is None else 1

    def learner_values(self) -> dict[str, Any]:
        """Returns the settings of `rollcast learner`, as its --config has them.

        A setting that is None is among them, because it may replace the value of a recipe.
        """
        own = ServingSettings.model_fields.keys() - {*_MADE_HERE, "run_dir", "resume"}
        return self.model_dump(mode="json", include=set(own))

    def actor_values(self, role: str) -> Mapping[str, Any]:
        """Returns the settings of `rollcast actor`, as its --config has them.

        Args:
            role: `act` or `evaluate`.
        """
        values = self.model_dump(
            mode="json", include={*ActingSettings.model_fields, "network", "policy_encoding", "log_level"}
        )
        return {**values, "role": role, "max_rollout_bytes": self.limits.max_rollout_bytes}

    def learner_resources(self) -> Resources:
        """Returns the resources of the learner's job."""
        return Resources(
            partition=self.partition,
            account=self.account,
            qos=self.qos,
            time=self.time,
            gpus=self.gpus,
            cpus=self.learner_cpus,
            memory=self.learner_mem,
            extra=[*_extra_options(self.sbatch), *_extra_options(self.learner_sbatch)],
        )

    def actor_resources(self) -> Resources:
        """Returns the resources of each actor's job."""
        return Resources(
            partition=self.actor_partition or self.partition,
            account=self.account,
            qos=self.qos,
            time=self.time,
            cpus=self.actor_cpus,
            memory=self.actor_mem,
            extra=[*_extra_options(self.sbatch), *_extra_options(self.actor_sbatch)],
        )
