"""Calls Slurm's commands: sbatch, squeue and scancel."""

import getpass
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollcast.services.errors import SlurmError
from rollcast.services.process.interrupts import interrupts_held_back

# Slurm's own commands time out after some 100 s without the controller.
_TIMEOUT_S: Final = 150

# Parts of Slurm's messages, and advice for each.
_ADVICE: Final = (
    (
        r"accounting/QOS policy|QOSMax|AssocMax|AssocGrp|QOSGrp",
        "ask for less with --actors, --gpus or --time, or choose another --account or --qos; sacctmgr show assoc "
        "user=$USER lists your limits",
    ),
    (r"[Ii]nvalid account|account/partition", "choose another --account; sacctmgr show assoc user=$USER lists yours"),
    (r"[Ii]nvalid qos", "choose another --qos; sacctmgr show qos lists them"),
    (r"[Pp]artition", "choose another --partition; sinfo lists them"),
    (r"[Tt]ime ?limit|time specification", "choose a shorter --time; sinfo lists the limits of partitions"),
    (r"job array", "give fewer --actors; scontrol show config names MaxArraySize"),
    (
        r"node configuration|[Mm]emory|GRES|gres|CPU count|cpus",
        "ask for less, or for another partition; sinfo --format='%P %c %m %G' lists what nodes have",
    ),
    (r"[Dd]isk quota|No space left", "make room, or choose a --run-dir on another file system"),
    (
        r"contact slurm controller|Connection refused|timed out|Communication",
        "try again when squeue answers, or ask the cluster's operators",
    ),
)
_OTHERWISE: Final = "correct the option that it names, or look at the script that --dry-run prints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job in Slurm's queue, or one task of an array.

    Attributes:
        number: The job's number, as Slurm lists it: `12`, `13_4`.
        name: Its name.
        state: Its state, such as `PENDING` or `RUNNING`.
        index: The index in the array; None without an array.
    """

    number: str
    name: str
    state: str
    index: int | None


class Cluster:
    """The cluster of this machine, where Slurm's commands are on PATH."""

    def submit(self, script: Path, *options: str) -> str:
        """Submits a job and returns its number.

        Args:
            script: The batch script.
            options: sbatch options, which override the script's options.

        Raises:
            SlurmError: Slurm is not installed, refuses the job, or prints no number.
        """
        # A job whose number is not read could not be cancelled.
        with interrupts_held_back():
            said = _run(submission(script, *options), f"submit {script}")
        # a site's own sbatch may print a greeting first; with several clusters it prints NUMBER;CLUSTER
        last = (said.split("\n")[-1] if said else "").partition(";")[0]
        if re.fullmatch(r"[0-9]+", last) is None:
            raise SlurmError(
                f"sbatch accepted {script} and printed {said!r}; expected the number of a job; look for it with "
                "squeue, and cancel it with scancel"
            )
        return last

    def cancel(self, *numbers: str) -> None:
        """Cancels jobs, whether they wait or run.

        Raises:
            SlurmError: Slurm refuses, or does not answer.
        """
        _run(["scancel", *numbers], f"cancel {' '.join(numbers)}")

    def queued(self, *names: str) -> list[Queued]:
        """Returns this user's waiting and running jobs with these names; each task of an array is an entry.

        Raises:
            SlurmError: Slurm does not answer.
        """
        said = _run(
            [
                *("squeue", "--noheader", "--array", f"--user={getpass.getuser()}", f"--name={','.join(names)}"),
                "--format=%i|%j|%T|%K",
            ],
            "list the jobs of the run",
        )
        rows = [line.strip().split("|") for line in said.splitlines() if line.count("|") == 3]
        return [
            Queued(number=number, name=name, state=state, index=int(index) if index.isdecimal() else None)
            for number, name, state, index in rows
        ]


def submission(script: Path, *options: str) -> list[str]:
    """Returns the command that submits a script."""
    return ["sbatch", "--parsable", *options, str(script)]


def _run(command: Sequence[str], purpose: str) -> str:
    """Runs one of Slurm's commands and returns what it printed.

    Raises:
        SlurmError: The command is missing, does not end, or fails.
    """
    # In a shell of salloc or srun, sbatch would apply the SLURM_ variables of that job to the new job.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,  # the terminal's signals do not end it
        )
    except FileNotFoundError as error:
        raise SlurmError(
            f"there is no {command[0]} on this machine's PATH to {purpose}; expected a machine of a Slurm cluster; "
            "run the command there, or look at the scripts with --dry-run"
        ) from error
    except OSError as error:
        raise SlurmError(
            f"cannot run {command[0]} to {purpose}: {error.strerror}; expected Slurm's own program; correct PATH"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(
            f"{command[0]} has not answered for {_TIMEOUT_S} s when asked to {purpose}; expected an answer; try again "
            "when squeue answers, and look there first: the job may have been submitted"
        ) from error
    if done.returncode != 0:
        told = " ".join((done.stderr or done.stdout).split()) or f"nothing, and exit code {done.returncode}"
        raise SlurmError(f"{command[0]} failed to {purpose}; it said: {told}; {_advice(told)}")
    return done.stdout.strip()


def _advice(told: str) -> str:
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, told)), _OTHERWISE)
