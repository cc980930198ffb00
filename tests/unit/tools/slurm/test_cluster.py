import pytest

from rollcast.services.errors import SlurmError
from rollcast.tools.slurm.cluster import Cluster, Queued
from tests.fake_slurm import FakeSlurm


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "job.sh"
    file.write_text("#!/bin/bash\n")
    return file


@pytest.mark.parametrize("said", ["12", "12;cluster2", "welcome to the cluster\n12"])
def test_submits_and_returns_the_number(fake_slurm: FakeSlurm, script, said):
    fake_slurm.answer("sbatch", f"echo '{said}'")
    assert Cluster().submit(script, "--array=0-3") == "12"
    assert fake_slurm.calls() == [f"sbatch --parsable --array=0-3 {script}"]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or "
            "time limits)",
            "ask for less with --actors, --gpus or --time, or choose another --account or --qos",
        ),
        ("invalid partition specified: gpus", "choose another --partition; sinfo lists them"),
        (
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "choose another --account",
        ),
        (
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            "shorter --time",
        ),
        ("Batch job submission failed: Invalid job array specification", "give fewer --actors"),
        ("Batch job submission failed: Requested node configuration is not available", "ask for less"),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", "when squeue answers"),
        ("Batch job submission failed: I/O error writing script/output to file: Disk quota exceeded", "make room"),
        ("Batch job submission failed: the moon is full", "the script that --dry-run prints"),
    ],
)
def test_a_refusal_says_what_sbatch_said_and_what_to_do(fake_slurm: FakeSlurm, script, said, advice):
    fake_slurm.refuse("sbatch", said.replace("'", ""))
    with pytest.raises(SlurmError) as raised:
        Cluster().submit(script)
    assert f"it said: sbatch: error: {said.replace(chr(39), '')}; " in str(raised.value)
    assert advice in str(raised.value)


def test_says_so_if_slurm_is_not_here(script, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SlurmError, match=r"there is no sbatch on this machine's PATH .*; run the command there, or .*--dry-run"
    ):
        Cluster().submit(script)


def test_says_so_if_sbatch_gives_no_number(fake_slurm: FakeSlurm, script):
    fake_slurm.answer("sbatch", "echo thank you")
    with pytest.raises(SlurmError, match="printed 'thank you'; expected the number of a job; look for it with squeue"):
        Cluster().submit(script)


def test_lists_jobs_and_the_tasks_of_arrays(fake_slurm: FakeSlurm):
    fake_slurm.answer("squeue", "echo '12|learner|RUNNING|N/A'; echo '13_4|actors|PENDING|4'")
    assert Cluster().queued("learner", "actors") == [
        Queued(number="12", name="learner", state="RUNNING", index=None),
        Queued(number="13_4", name="actors", state="PENDING", index=4),
    ]
    assert "--name=learner,actors" in fake_slurm.calls()[0]


def test_submits_as_from_outside_of_a_job(fake_slurm: FakeSlurm, script, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "64")
    monkeypatch.setenv("SLURM_CONF", "/etc/elsewhere.conf")
    fake_slurm.answer("sbatch", 'echo "${SLURM_CPUS_PER_TASK:-none} $SLURM_CONF" >seen; echo 12')
    Cluster().submit(script)
    assert (fake_slurm.folder / "seen").read_text() == "none /etc/elsewhere.conf\n"
