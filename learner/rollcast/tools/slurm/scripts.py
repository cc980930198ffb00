"""Writes the batch scripts of a run: one learner job, and arrays of actors and evaluators."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollcast.tools.slurm.folder import Job, SlurmFolder
from rollcast.tools.slurm.template import COMMAND, DIRECTIVES, PROLOG, fill

# The name in the learner's certificate: the certificate is made before the learner's machine is known.
SERVER_NAME: Final = "localhost"
# sbatch splits an #SBATCH line at spaces, removes quotes and backslashes, and takes the rest from # on for a comment.
_MEANS_MORE: Final = re.compile(r"[\s\"'\\#]")

# Runs a process until it ends, and `beside` in the background. A signal makes `wait` return early, so the script waits
# again.
_RUN: Final = """\
set +e +u
beside() { :; }
told=0
process=
trap 'told=$((told + 1)); [ -z "$process" ] || kill -TERM "$process" 2>/dev/null' TERM
run() {
  "$@" &
  process=$!
  beside "$process" &
  local beside=$!
  [ "$told" -eq 0 ] || kill -TERM "$process"
  local before=-1
  while [ "$before" != "$told" ]; do
    before=$told
    wait "$process"
    code=$?
  done
  kill -TERM "$beside" 2>/dev/null
}

# A cancelled job is no longer RUNNING, and must not be requeued.
is_running() { [ "$(squeue --noheader --jobs="$1" --format=%T)" = RUNNING ]; }

# For a job that Slurm has just requeued, this is above the job's own SLURM_RESTART_COUNT.
restarts() {
  local shown
  shown=$(scontrol --oneliner show job "$1")
  [[ $shown =~ Restarts=([0-9]+) ]] && echo "${BASH_REMATCH[1]}" || echo 0
}
"""

_LEARNER: Final = """\
run {command}

if [ "$told" -gt 0 ] && [ "$code" -ne 2 ]; then
  trap '' TERM
  if is_running "$SLURM_JOB_ID"; then
    # stopped before its time limit: the checkpoint is written, and the job continues later
    scontrol requeue "$SLURM_JOB_ID" && exit 0
    code=1
  elif [ "$(restarts "$SLURM_JOB_ID")" -gt "${{SLURM_RESTART_COUNT:-0}}" ]; then
    # preempted, or requeued by hand: Slurm has requeued it already
    exit "$code"
  fi
fi

# The learner does not restart. After training, actors end by themselves, except those that are queued or have just
# begun. After a failure or scancel, all of them would wait in vain.
end() {{
  for name in {arrays}; do
    scancel --quiet --user="$(id -un)" --name="$name" "$@"
  done
}}
if [ "$told" -eq 0 ] && [ "$code" -eq 0 ]; then
  end --state=PENDING
  for _ in {{1..10}}; do
    [ -n "$(squeue --noheader --user="$(id -un)" --name={names})" ] || exit 0
    sleep 2
  done
fi
end
exit "$code"
"""

_ARRAY: Final = """\
me=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID

# Prints the number and the state of the learner's job; nothing if it is not in the queue.
learner() {{ squeue --noheader --user="$(id -un)" --name={learner} --format='%i %T'; }}

# Requeues this task, behind the learner's job if that is queued, too.
requeue() {{
  trap '' TERM # scontrol has to outlive the signal that it causes
  scontrol requeue "$me" || exit 1
  [ -z "$1" ] || scontrol update JobId="$me" Dependency="after:$1"
  exit 0
}}

# Ends an actor that would wait in vain because its learner is no longer in the queue: the learner was cancelled, and
# killed before it could tell its actors. A learner that ends removes its address file; a killed one leaves it.
beside() {{
  local found looks=$((RANDOM % 10))
  trap 'kill "$!" 2>/dev/null; exit' TERM
  while sleep 30 & wait "$!"; do
    [ -e {address_file} ] && [ $((looks += 1)) -lt 10 ] && continue
    looks=0
    found=$(learner) && [ -z "$found" ] && kill -TERM "$1" && return
  done
}}

code=0
pending=0
while :; do
  if [ "$told" -gt 0 ]; then
    is_running "$me" && requeue ''
    exit "$code"
  fi
  found=$(learner) && [ -z "$found" ] && echo 'the learner is not in the queue any more' && exit "$code"
  read -r number state <<<"$found"
  case $state in
    PENDING)
      # After a time limit both are requeued at the same moment: the learner will run soon.
      if [ "$code" -ne 0 ] || [ $((pending += 1)) -gt 12 ]; then requeue "$number"; fi
      sleep 10
      continue
      ;;
    COMPLETING)
      sleep 5
      continue
      ;;
  esac
  run {command}
  [ "$told" -eq 0 ] || continue
  case $code in 0 | 2) exit "$code" ;; esac
  read -r number state <<<"$(learner)"
  if [ "$state" = RUNNING ] && [ -e {address_file} ]; then
    [ "${{SLURM_RESTART_COUNT:-0}}" -lt {max_restarts} ] && requeue ''
    exit "$code"
  fi
  # the learner has begun but does not listen yet, or is about to be requeued
  [ "$state" = PENDING ] || sleep 5
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that a job requests; empty: the cluster's default.

    Attributes:
        partition: Names of partitions, separated by commas.
        account: The account.
        qos: The quality of service.
        time: The time limit, in Slurm's format.
        gpus: GPUs: a number, or `TYPE:NUMBER`.
        cpus: Cores of a process.
        memory: Memory of a job, in Slurm's format.
        extra: Further sbatch options; each becomes a line.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    gpus: str = ""
    cpus: int = 1
    memory: str = ""
    extra: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The values that all scripts of a run share.

    Attributes:
        program: The command that starts rollcast, on a file system that all nodes share.
        working_directory: The folder in which the processes start.
        python_path: The PYTHONPATH of the processes; empty: that of Slurm's environment.
        prolog: Lines of shell before each process, such as `module load cuda`.
        template: As `read_template` returns it.
        signal_s: Seconds before the time limit at which Slurm sends the signal to stop.
        max_restarts: Number of restarts of an actor after failures.
        patience_s: Seconds that an actor waits for a learner, before it checks Slurm's queue.
    """

    program: Sequence[str]
    working_directory: Path
    python_path: str
    prolog: str
    template: str
    signal_s: int
    max_restarts: int
    patience_s: float


def learner_script(folder: SlurmFolder, resources: Resources, surroundings: Surroundings) -> str:
    """Returns the script of the learner's job."""
    rendezvous = folder.rendezvous
    command = [
        *(*surroundings.program, "learner", "--config", folder.settings(Job.LEARNER)),
        *("--run-dir", folder.run_dir, "--resume", "auto", "--address-file", folder.address_file),
        *("--tls-cert", rendezvous / "server.pem", "--tls-key", rendezvous / "server.key"),
        *("--tls-server-name", SERVER_NAME, "--tokens-file", rendezvous / "tokens"),
    ]
    # squeue takes several names, scancel one
    arrays = [folder.job_name(job) for job in (Job.ACTORS, Job.EVALUATORS)]
    body = _LEARNER.format(command=_continued(command), arrays=shlex.join(arrays), names=",".join(arrays))
    return _script(folder, Job.LEARNER, resources, surroundings, body, "learner-$SLURM_JOB_ID", "slurm-learner-%j")


def array_script(
    folder: SlurmFolder, job: Job, resources: Resources, surroundings: Surroundings, *, log_name: str
) -> str:
    """Returns the script of an array of actors or evaluators. The array gets its indices at submission.

    Args:
        folder: The folder of the run.
        job: The array.
        resources: The resources of each process.
        surroundings: The values that all scripts share.
        log_name: The first part of a process's name, and of the name of its log: `actor`.
    """
    patience = f"{surroundings.patience_s:g}"
    command = [
        *(*surroundings.program, "actor", "--config", folder.settings(job)),
        *("--learner-address", folder.address, "--connect-timeout-s", patience, "--reconnect-timeout-s", patience),
        *("--tls-ca", folder.rendezvous / "ca.pem", "--token-file", folder.rendezvous / "actor.token"),
    ]
    body = _ARRAY.format(
        command=f'{_continued(command)} \\\n    --actor-id "{log_name}-$SLURM_ARRAY_TASK_ID"',
        learner=shlex.quote(folder.job_name(Job.LEARNER)),
        address_file=shlex.quote(str(folder.address_file)),
        max_restarts=surroundings.max_restarts,
    )
    log = f"{log_name}-$SLURM_ARRAY_TASK_ID-$SLURM_ARRAY_JOB_ID"
    return _script(folder, job, resources, surroundings, body, log, f"slurm-{log_name}-%a-%A")


def _script(
    folder: SlurmFolder, job: Job, resources: Resources, surroundings: Surroundings, body: str, log: str, slurm_log: str
) -> str:
    # The script logs to a file for each attempt, because Slurm's own file has the messages of all attempts of a job.
    started = [
        f'exec >>{shlex.quote(str(folder.logs))}/"{log}-attempt${{SLURM_RESTART_COUNT:-0}}.log" 2>&1',
        # The settings are in the file; variables of the shell that submits may have changed since.
        "unset ${!ROLLCAST_@}",
        *([f"export PYTHONPATH={shlex.quote(surroundings.python_path)}"] if surroundings.python_path else []),
        *([surroundings.prolog] if surroundings.prolog else []),
    ]
    directives = [
        f"--job-name={folder.job_name(job)}",
        f"--chdir={quoted_value(surroundings.working_directory)}",
        f"--output={quoted_value(_literal(folder.logs) + f'/{slurm_log}.out')}",
        *("--open-mode=append", "--requeue", f"--signal=B:TERM@{surroundings.signal_s}"),
        *("--nodes=1", "--ntasks=1", f"--cpus-per-task={resources.cpus}"),
        *(
            f"--{option}={value}"
            for option, value in (
                *(("partition", resources.partition), ("account", resources.account), ("qos", resources.qos)),
                *(("time", resources.time), ("gpus", resources.gpus), ("mem", resources.memory)),
            )
            if value
        ),
        *resources.extra,
    ]
    parts = {
        DIRECTIVES: "\n".join(f"#SBATCH {directive}" for directive in directives),
        PROLOG: "\n".join(started),
        COMMAND: f"{_RUN}\n{body}".rstrip("\n"),
    }
    return fill(surroundings.template, parts)


def _continued(command: Sequence[object]) -> str:
    """Returns a command for the shell, with each option on its own line."""
    words = [shlex.quote(str(word)) for word in command]
    lines = [words[0]]
    for word in words[1:]:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return " \\\n    ".join(lines)


def _literal(path: Path) -> str:
    """Returns a path with `%` escaped for sbatch."""
    return str(path).replace("%", "%%")


def quoted_value(value: object) -> str:
    """Returns a value as an #SBATCH line needs it: quoted if sbatch would read it otherwise."""
    text = str(value)
    if not _MEANS_MORE.search(text):
        return text
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'
