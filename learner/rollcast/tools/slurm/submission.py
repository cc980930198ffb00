"""Submits the jobs of a run: all of them or none."""

from collections.abc import Callable, Mapping, Sequence

from rollcast.services.errors import ConfigurationError, SlurmError
from rollcast.services.process.interrupts import interrupts_held_back
from rollcast.tools.slurm.cluster import Cluster, Queued
from rollcast.tools.slurm.folder import Job, SlurmFolder


def submit_run(
    cluster: Cluster, folder: SlurmFolder, tasks: Mapping[Job, int], *, is_stopped: Callable[[], bool] = lambda: False
) -> dict[Job, str]:
    """Submits the learner's job, and arrays that begin after it has begun.

    Args:
        cluster: The cluster.
        folder: The folder of the run, with its scripts.
        tasks: The number of tasks of each array; arrays without tasks are not submitted.
        is_stopped: Returns whether a signal has arrived.

    Returns:
        The number of each job.

    Raises:
        SlurmError: Slurm refuses a job. The jobs before it are cancelled, or the message says that they are not.
        KeyboardInterrupt: A signal has arrived. The submitted jobs are cancelled.
    """
    submitted: dict[Job, str] = {}
    try:
        _end_if(is_stopped())
        submitted[Job.LEARNER] = learner = cluster.submit(folder.script(Job.LEARNER))
        for job, n_tasks in tasks.items():
            if n_tasks:
                options = array_options(range(n_tasks), learner)
                _end_if(is_stopped())
                submitted[job] = cluster.submit(folder.script(job), *options)
        _end_if(is_stopped())
    except SlurmError as error:
        raise SlurmError(f"{error}; {_taken_back(cluster, submitted)}") from error
    except BaseException:  # Ctrl-C between two jobs; a second one must not end scancel
        with interrupts_held_back():
            _taken_back(cluster, submitted)
        raise
    return submitted


def _end_if(stopped: bool) -> None:
    if stopped:
        raise KeyboardInterrupt


def array_options(indices: range, learner: str) -> tuple[str, ...]:
    """Returns the sbatch options for an array.

    Args:
        indices: The indices of its tasks.
        learner: The number of the learner's job, which has to begin first.
    """
    return f"--array={indices.start}-{indices.stop - 1}", f"--dependency=after:{learner}"


def add_actors(cluster: Cluster, folder: SlurmFolder, n_actors: int, *, max_actors: int) -> tuple[str, range]:
    """Submits another array of actors for a run whose learner waits or runs.

    Args:
        cluster: The cluster.
        folder: The folder of the run.
        n_actors: The number of new actors.
        max_actors: The largest number of actors that the learner admits.

    Returns:
        The number of the array, and the indices of its tasks.

    Raises:
        ConfigurationError: The learner's job has ended, or the learner would have more actors than it admits.
        SlurmError: Slurm refuses the array, or does not answer.
    """
    names = [folder.job_name(job) for job in (Job.LEARNER, Job.ACTORS, Job.EVALUATORS)]
    queued = cluster.queued(*names)
    learner = next((job.number for job in queued if job.name == names[0]), None)
    if learner is None:
        raise ConfigurationError(
            f"--add-actors: the learner of {folder.run_dir} is not in the queue; expected its job to wait or run; "
            f"submit the run again with rollcast slurm --resume {folder.run_dir}"
        )
    taken = [job.index for job in queued if job.name == names[1] and job.index is not None]
    n_evaluators = sum(job.name == names[2] for job in queued)
    if len(taken) + n_evaluators + n_actors > max_actors:
        raise ConfigurationError(
            f"--add-actors: {n_actors} beside {len(taken)} actors and {n_evaluators} evaluators are above the "
            f"learner's --max-actors, {max_actors}; expected at most "
            f"{max(0, max_actors - len(taken) - n_evaluators)}; add fewer, or submit the run again with a higher "
            "--max-actors"
        )
    start = max(taken, default=-1) + 1
    indices = range(start, start + n_actors)
    return cluster.submit(folder.script(Job.ACTORS), *array_options(indices, learner)), indices


def check_not_queued(cluster: Cluster, folder: SlurmFolder) -> None:
    """Checks that no job of a run waits or runs.

    Raises:
        ConfigurationError: A job of the run waits or runs.
        SlurmError: Slurm does not answer.
    """
    queued = cluster.queued(*(folder.job_name(job) for job in Job))
    if queued:
        raise ConfigurationError(
            f"--resume: {folder.run_dir} has jobs in the queue: {_numbers(queued)}; expected none, because two "
            f"learners cannot train in one run; wait, or cancel them: scancel {' '.join(_whole(queued))}"
        )


def _taken_back(cluster: Cluster, submitted: Mapping[Job, str]) -> str:
    """Cancels jobs, and returns a clause about them for the message."""
    if not submitted:
        return "no other job of the run was submitted"
    said = ", ".join(f"the {job}'{'s' if job is Job.LEARNER else ''} job {number}" for job, number in submitted.items())
    try:
        cluster.cancel(*submitted.values())
    except SlurmError as error:
        return f"{said} could not be cancelled ({error}): cancel by hand: scancel {' '.join(submitted.values())}"
    return f"{said}, which had been submitted before, is cancelled: nothing runs"


def _numbers(queued: Sequence[Queued]) -> str:
    shown = ", ".join(f"{job.number} ({job.state.lower()})" for job in queued[:4])
    return shown + (f" and {len(queued) - 4} more" if len(queued) > 4 else "")


def _whole(queued: Sequence[Queued]) -> list[str]:
    """Returns the numbers of jobs, and of whole arrays instead of their tasks."""
    return sorted({job.number.partition("_")[0] for job in queued}, key=int)
