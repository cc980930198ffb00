import pytest

from rollcast.services.errors import ConfigurationError, SlurmError
from rollcast.tools.slurm.cluster import Cluster
from rollcast.tools.slurm.folder import Job, SlurmFolder
from rollcast.tools.slurm.submission import add_actors, check_not_queued, submit_run
from tests.fake_slurm import FakeSlurm

QUOTA = "Batch job submission failed: Job violates accounting/QOS policy"


def in_queue(fake: FakeSlurm, folder: SlurmFolder, *rows: str) -> None:
    """Fills squeue: rows as `learner|12|RUNNING|N/A`, with the kind of job for its name."""
    fields = [row.split("|") for row in rows]
    lines = [f"{number}|{folder.job_name(Job(job))}|{state}|{index}" for job, number, state, index in fields]
    fake.answer("squeue", "\n".join(f"echo '{line}'" for line in lines))


def test_arrays_begin_after_the_learner(fake_slurm: FakeSlurm, folder):
    numbers = submit_run(Cluster(), folder, {Job.ACTORS: 64, Job.EVALUATORS: 0})
    assert numbers == {Job.LEARNER: "11", Job.ACTORS: "12"}
    assert fake_slurm.calls() == [
        f"sbatch --parsable {folder.script(Job.LEARNER)}",
        f"sbatch --parsable --array=0-63 --dependency=after:11 {folder.script(Job.ACTORS)}",
    ]


@pytest.mark.parametrize(
    ("refused", "said", "cancelled"),
    [
        (1, "no other job of the run was submitted", []),
        (2, "ask for less .*; the learner's job 11, .*, is cancelled: nothing runs", ["scancel 11"]),
        (3, "the learner's job 11, the actors' job 12, .*, is cancelled", ["scancel 11 12"]),
    ],
    ids=["the learner", "the actors", "the evaluator"],
)
def test_cancels_all_before_the_one_that_is_refused(fake_slurm: FakeSlurm, folder, refused, said, cancelled):
    fake_slurm.refuse("sbatch", QUOTA, call=refused)
    with pytest.raises(SlurmError, match=f"it said: sbatch: error: {QUOTA}; .*{said}"):
        submit_run(Cluster(), folder, {Job.ACTORS: 64, Job.EVALUATORS: 1})
    assert fake_slurm.calls("scancel") == cancelled


def test_says_what_to_cancel_if_that_is_refused_too(fake_slurm: FakeSlurm, folder):
    fake_slurm.refuse("sbatch", QUOTA, call=2)
    fake_slurm.refuse("scancel", "Unable to contact slurm controller")
    with pytest.raises(SlurmError, match=r"could not be cancelled .*Unable to contact.*: cancel by hand: scancel 11"):
        submit_run(Cluster(), folder, {Job.ACTORS: 64})


class TestAddingActors:
    def test_takes_the_next_indices(self, fake_slurm: FakeSlurm, folder):
        in_queue(fake_slurm, folder, "learner|12|RUNNING|N/A", "actors|13_0|RUNNING|0", "actors|13_3|PENDING|3")
        assert add_actors(Cluster(), folder, 2, max_actors=64) == ("11", range(4, 6))
        assert fake_slurm.calls("sbatch") == [
            f"sbatch --parsable --array=4-5 --dependency=after:12 {folder.script(Job.ACTORS)}"
        ]

    def test_is_refused_after_the_learner_has_ended(self, fake_slurm: FakeSlurm, folder):
        in_queue(fake_slurm, folder, "actors|13_0|COMPLETING|0")
        with pytest.raises(ConfigurationError, match=f"not in the queue; .* rollcast slurm --resume {folder.run_dir}"):
            add_actors(Cluster(), folder, 2, max_actors=64)

    def test_is_refused_above_what_the_learner_admits(self, fake_slurm: FakeSlurm, folder):
        in_queue(fake_slurm, folder, "learner|12|RUNNING|N/A", "actors|13_0|RUNNING|0", "evaluators|14_0|RUNNING|0")
        with pytest.raises(
            ConfigurationError, match=r"2 beside 1 actors and 1 evaluators are above .*; expected at most 1"
        ):
            add_actors(Cluster(), folder, 2, max_actors=3)
        assert not fake_slurm.calls("sbatch")


def test_refuses_a_second_learner_in_one_run(fake_slurm: FakeSlurm, folder):
    check_not_queued(Cluster(), folder)
    in_queue(fake_slurm, folder, "learner|12|PENDING|N/A", *(f"actors|13_{n}|RUNNING|{n}" for n in range(5)))
    with pytest.raises(ConfigurationError, match=r"12 \(pending\), 13_0 .* and 2 more; .*: scancel 12 13$"):
        check_not_queued(Cluster(), folder)
