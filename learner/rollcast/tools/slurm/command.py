"""`rollcast slurm`: submits a run to a Slurm cluster."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import IO

from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.signals import stop_on_signals
from rollcast.learner.disk import write_whole
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.run_folder import default_run_dir
from rollcast.services.errors import ConfigurationError
from rollcast.services.process.installation import typed
from rollcast.services.process.interrupts import interrupts_held_back
from rollcast.services.settings.file import encode_settings, read_settings
from rollcast.tools.certificates import make_certificates
from rollcast.tools.slurm.cluster import Cluster, submission
from rollcast.tools.slurm.folder import Job, SlurmFolder
from rollcast.tools.slurm.scripts import Surroundings, array_script, learner_script
from rollcast.tools.slurm.settings import SlurmSettings
from rollcast.tools.slurm.submission import add_actors, array_options, check_not_queued, submit_run
from rollcast.tools.slurm.template import read_template

# The files of `make_certificates` that a run needs. The authority's key is not kept: it could make more certificates.
_NEEDED = frozenset(("ca.pem", "server.pem", "server.key", "tokens", "actor.token", "viewer.token", "operator.token"))


def slurm(settings: SlurmSettings, output: IO[str]) -> int:
    """Writes and submits the jobs of a run, or adds actors to one; prints their numbers, and returns the exit code.

    A signal before the last job is submitted cancels the others: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

    Raises:
        ConfigurationError: A setting is not valid, or the run's folder exists already.
        SlurmError: Slurm refuses a job; the jobs before it are cancelled.
        OSError: The files cannot be written.
    """
    folder = SlurmFolder(settings.run_dir or default_run_dir(settings))
    cluster = Cluster()
    if settings.add_actors is not None:
        return _add(settings.add_actors, cluster, folder, output)
    _check_environment(settings)
    files = _files(settings, folder)
    # evaluators first: in a long queue, they would wait behind all actors
    tasks = {Job.EVALUATORS: settings.n_evaluators(), Job.ACTORS: settings.actors}
    if settings.dry_run:
        _print_files(files, tasks, folder, output)
        return 0
    is_new = settings.resume is None
    if is_new:
        _check_new(folder)
    else:
        check_not_queued(cluster, folder)
    existed = folder.run_dir.exists()
    # SIGTERM and SIGHUP, too: half a run would occupy the cluster
    with stop_on_signals(lambda: None) as received:
        try:
            if is_new:
                RunDirectory.create(folder.run_dir.parent, folder.run_dir.name)
            _write(files, folder)
            numbers = submit_run(cluster, folder, tasks, is_stopped=lambda: bool(received))
        except BaseException as error:
            # removes the files of a run that was not submitted, so that the same command works again
            with interrupts_held_back():
                if is_new:
                    shutil.rmtree(folder.path if existed else folder.run_dir, ignore_errors=True)
            if isinstance(error, KeyboardInterrupt) and received:
                return 128 + received[0]
            raise
    _report(numbers, tasks, folder, output)
    return 0


def _check_environment(settings: SlurmSettings) -> None:
    """Checks that the learner's environment exists.

    Raises:
        ConfigurationError: It does not exist: all jobs would start, and fail.
    """
    if settings.spaces_from != "environment" or settings.prolog:
        return  # the prolog may install it
    try:
        settings.env_factory().vector_spec()
    except ConfigurationError as error:
        # A module may need software that only the nodes have, such as the driver of a GPU.
        if isinstance(error.__cause__, ImportError) and not isinstance(error.__cause__, ModuleNotFoundError):
            return
        raise


def _files(settings: SlurmSettings, folder: SlurmFolder) -> dict[Path, str]:
    """Returns the files of the jobs, by path."""
    surroundings = Surroundings(
        program=_program(),
        working_directory=Path.cwd(),
        python_path=os.environ.get("PYTHONPATH", ""),
        prolog=settings.prolog,
        template=read_template(settings.template),
        signal_s=settings.signal_s,
        max_restarts=settings.max_restarts,
        patience_s=settings.patience_s,
    )
    resources = settings.actor_resources()
    files = {
        folder.script(Job.LEARNER): learner_script(folder, settings.learner_resources(), surroundings),
        folder.settings(Job.LEARNER): encode_settings(settings.learner_values()).decode(),
        folder.script(Job.ACTORS): array_script(folder, Job.ACTORS, resources, surroundings, log_name="actor"),
        folder.settings(Job.ACTORS): encode_settings(settings.actor_values("act")).decode(),
    }
    if settings.n_evaluators():
        script = array_script(folder, Job.EVALUATORS, resources, surroundings, log_name="evaluator")
        files[folder.script(Job.EVALUATORS)] = script
        files[folder.settings(Job.EVALUATORS)] = encode_settings(settings.actor_values("evaluate")).decode()
    return files


def _program() -> list[str]:
    """Returns the command that starts this installation's rollcast, by its full path."""
    own = Path(sys.executable).parent / "rollcast"
    return [str(own)] if own.is_file() else [sys.executable, "-m", "rollcast.learner"]


def _check_new(folder: SlurmFolder) -> None:
    if folder.path.exists():
        raise ConfigurationError(
            f"--run-dir: the run {folder.run_dir} has been submitted before; expected a new folder; to continue it, "
            f"give --resume {folder.run_dir}; for more actors, give --add-actors"
        )


def _write(files: dict[Path, str], folder: SlurmFolder) -> None:
    folder.logs.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        write_whole(path, content.encode())
    # removes those of an earlier submission: each submission gets new certificates and tokens
    if folder.rendezvous.exists():
        shutil.rmtree(folder.rendezvous)
    for made in make_certificates(folder.rendezvous):
        if made.name not in _NEEDED:
            made.unlink()


def _print_files(files: dict[Path, str], tasks: dict[Job, int], folder: SlurmFolder, output: IO[str]) -> None:
    for path, content in files.items():
        print_line(output, f"# {path}")
        for line in content.splitlines():
            print_line(output, line)
        print_line(output, "")
    print_line(output, "# the commands")
    print_line(output, shlex.join(submission(folder.script(Job.LEARNER))))
    for job, n_tasks in tasks.items():
        if n_tasks:
            options = array_options(range(n_tasks), "LEARNER_JOB")
            print_line(output, shlex.join(submission(folder.script(job), *options)))


def _report(numbers: dict[Job, str], tasks: dict[Job, int], folder: SlurmFolder, output: IO[str]) -> None:
    program, run_dir = typed("rollcast"), shlex.quote(str(folder.run_dir))
    certificates = f"--tls-ca {shlex.quote(str(folder.rendezvous / 'ca.pem'))}"
    rows = [("run directory", run_dir)]
    for job, number in numbers.items():
        rows.append((job.value, f"job {number}" + (f", {tasks[job]} tasks" if job in tasks else "")))
    for name, value in (
        *rows,
        ("logs", shlex.quote(str(folder.logs))),
        (
            "look at it",
            f"{program} status --address {shlex.quote(folder.address)} {certificates} --token-file "
            f"{shlex.quote(str(folder.rendezvous / 'viewer.token'))}",
        ),
        ("more actors", f"{program} slurm --run-dir {run_dir} --add-actors {tasks[Job.ACTORS]}"),
        ("cancel it", f"scancel {' '.join(numbers.values())}"),
    ):
        print_line(output, f"{name:<15}{value}")


def _add(n_actors: int, cluster: Cluster, folder: SlurmFolder, output: IO[str]) -> int:
    if not folder.script(Job.ACTORS).is_file():
        raise ConfigurationError(
            f"--run-dir: {str(folder.run_dir)!r} has no {folder.script(Job.ACTORS).name} of rollcast slurm; expected "
            "the folder of a run that it has submitted; correct the path"
        )
    values = read_settings(
        folder.settings(Job.LEARNER), expected="the settings of the run's learner", advice="submit the run again"
    )
    number, indices = add_actors(cluster, folder, n_actors, max_actors=int(values["max_actors"]))
    print_line(output, f"{'actors':<15}job {number}, actor-{indices.start} to actor-{indices.stop - 1}")
    return 0
