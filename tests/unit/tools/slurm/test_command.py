"""`rollcast slurm`, with Slurm's commands played; tests/e2e/test_slurm.py has a real cluster."""

import os
import re
import signal
import stat

import pytest

from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.file import encode_settings
from rollcast.tools.cli import main
from rollcast.tools.slurm.folder import Job, SlurmFolder
from rollcast.tools.slurm.settings import SlurmSettings
from tests.fake_slurm import FakeSlurm

pytestmark = pytest.mark.slow  # makes certificates


@pytest.fixture
def submit(folder, capsys, monkeypatch):
    """Returns the command for the run of the folder: with options, it returns its exit code, stdout and stderr."""
    monkeypatch.chdir(folder.run_dir.parent)

    def call(*options, which="--run-dir", run_dir=folder.run_dir):
        code = main(["slurm", which, str(run_dir), *map(str, options)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_dry_run_prints_all_and_writes_nothing(fake_slurm: FakeSlurm, folder, submit):
    code, printed, _ = submit("--dry-run", "--actors", 64, "--gpus", 1)
    assert code == 0
    assert "#SBATCH --gpus=1\n" in printed
    assert f"sbatch --parsable --array=0-63 --dependency=after:LEARNER_JOB {folder.script(Job.ACTORS)}\n" in printed
    assert not folder.run_dir.exists()
    assert not fake_slurm.calls()


def test_writes_files_for_the_owner_only_and_prints_how_to_go_on(fake_slurm: FakeSlurm, folder, submit):
    code, printed, _ = submit("--actors", 2, "--eval-interval-s", 60)
    assert code == 0
    assert re.findall(r"^(\w+) +job (\d+)", printed, re.MULTILINE) == [
        ("learner", "11"),
        ("evaluators", "12"),
        ("actors", "13"),
    ]
    assert "scancel 11 12 13\n" in printed
    assert stat.S_IMODE(folder.rendezvous.stat().st_mode) == 0o700
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.rendezvous.iterdir()}
    assert set(files.values()) == {0o600}
    assert set(files) == {
        *("ca.pem", "server.pem", "server.key", "tokens", "actor.token", "viewer.token", "operator.token")
    }
    assert all(folder.script(job).is_file() and folder.settings(job).is_file() for job in Job)


def test_each_run_has_a_token_of_its_own(fake_slurm: FakeSlurm, tmp_path, submit):
    tokens = set()
    for name in ("one", "two"):
        submit(run_dir=tmp_path / name)
        tokens.add((SlurmFolder(tmp_path / name).rendezvous / "actor.token").read_text())
    assert len(tokens) == 2


def test_nothing_stays_of_a_run_that_is_refused(fake_slurm: FakeSlurm, folder, submit):
    fake_slurm.refuse("sbatch", "Batch job submission failed: Job violates accounting/QOS policy", call=2)
    code, _, told = submit()
    assert code == 1
    assert "SlurmError: sbatch failed to submit" in told
    assert "Job violates accounting/QOS policy" in told
    assert "is cancelled: nothing runs" in told
    assert not folder.run_dir.exists()
    assert submit()[0] == 0, "the same command works once Slurm takes it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_stays_of_a_run_whose_submission_is_ended(
    number: signal.Signals, fake_slurm: FakeSlurm, folder, submit, monkeypatch
):
    """After the learner's job and before the actors', as by a lost ssh session."""
    between = "rollcast.tools.slurm.submission.array_options"
    monkeypatch.setattr(between, lambda *_: signal.raise_signal(number))
    assert submit("--actors", 2)[0] == 128 + number
    assert len(fake_slurm.calls("sbatch")) == len(fake_slurm.calls("scancel")) == 1
    assert not folder.run_dir.exists()


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_job_that_is_submitted_when_a_signal_comes_is_cancelled(n_jobs: int, fake_slurm: FakeSlurm, folder, submit):
    """sbatch has told the controller, and has not printed the number yet."""
    fake_slurm.answer("sbatch", f"kill -TERM {os.getpid()}; sleep 0.2; echo $((10 + n))", call=n_jobs)
    # impatient: while scancel runs
    fake_slurm.answer("scancel", f"kill -TERM {os.getpid()}; sleep 0.2; echo done >>cancelled")
    assert submit("--actors", 2)[0] == 128 + signal.SIGTERM
    assert len(fake_slurm.calls("sbatch")) == n_jobs
    assert fake_slurm.calls("scancel") == [" ".join(("scancel", "11", "12")[: 1 + n_jobs])]
    assert (fake_slurm.folder / "cancelled").is_file()
    assert not folder.run_dir.exists()


def test_a_learner_begins_in_the_folder_of_its_jobs(fake_slurm: FakeSlurm, folder, submit):
    submit()
    RunDirectory.create(folder.run_dir.parent, folder.run_dir.name)


def test_refuses_a_folder_that_another_run_has(fake_slurm: FakeSlurm, folder, submit):
    submit()
    code, _, told = submit()
    assert code == 2
    assert f"has been submitted before; expected a new folder; to continue it, give --resume {folder.run_dir}" in told
    assert folder.script(Job.LEARNER).is_file(), "the first run keeps its files"
    (folder.run_dir.parent / "other").mkdir()
    (folder.run_dir.parent / "other" / "settings.yaml").touch()
    assert "is not empty" in submit(run_dir=folder.run_dir.parent / "other")[2]


def test_refuses_an_environment_that_is_not_there(fake_slurm: FakeSlurm, folder, submit):
    for env_id, said in (("CartPoll-v1", "names no environment"), ("no_such_module:make", "cannot be loaded")):
        code, _, told = submit("--env-id", env_id)
        assert (code, env_id in told, said in told) == (2, True, True), told
        assert submit("--env-id", env_id, "--dry-run")[0] == 2
    assert not fake_slurm.calls()
    assert not folder.run_dir.exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--env-id", "needs_a_driver:make"),
        ("--env-id", "no_such_module:make", "--prolog", "module load simulator"),
        ("--env-id", "no_such_module:make", "--spaces-from", "first_actor"),
    ],
)
def test_takes_an_environment_that_may_be_on_the_nodes(fake_slurm: FakeSlurm, folder, submit, monkeypatch, options):
    monkeypatch.syspath_prepend(folder.run_dir.parent)
    (folder.run_dir.parent / "needs_a_driver.py").write_text("raise ImportError('libcuda.so.1: cannot open')")
    assert submit(*options)[0] == 0


def test_adds_actors_to_a_run(fake_slurm: FakeSlurm, folder, submit):
    submit("--actors", 2)
    learner = folder.job_name(Job.LEARNER)
    fake_slurm.answer("squeue", f"echo '11|{learner}|RUNNING|N/A'; echo '12_1|{folder.job_name(Job.ACTORS)}|RUNNING|1'")
    code, printed, _ = submit("--add-actors", 3)
    assert (code, printed) == (0, "actors         job 13, actor-2 to actor-4\n")
    assert fake_slurm.calls("sbatch")[-1].split()[2:4] == ["--array=2-4", "--dependency=after:11"]


def test_adds_no_actors_where_no_run_is(fake_slurm: FakeSlurm, folder, submit):
    code, _, told = submit("--add-actors", 3)
    assert code == 2
    assert "has no actors.sh of rollcast slurm; expected the folder of a run that it has submitted" in told


def test_a_resumed_run_has_new_tokens_and_no_job_in_the_queue(fake_slurm: FakeSlurm, folder, submit):
    submit()
    settings = SlurmSettings.from_command_line("rollcast slurm", ["--run-dir", str(folder.run_dir)])
    values = {name: value for name, value in settings.learner_values().items() if name != "max_actors"}
    (folder.run_dir / "settings.yaml").write_bytes(encode_settings(values))
    before = (folder.rendezvous / "tokens").read_text()
    code, printed, told = submit("--actors", 3, which="--resume")
    assert code == 0, told
    assert f"run directory  {folder.run_dir}\n" in printed
    assert (folder.rendezvous / "tokens").read_text() != before

    fake_slurm.answer("squeue", f"echo '13|{folder.job_name(Job.LEARNER)}|PENDING|N/A'")
    code, _, told = submit(which="--resume")
    assert code == 2
    assert "has jobs in the queue: 13 (pending)" in told


def test_the_template_of_ones_own_is_read_before_anything_is_written(fake_slurm: FakeSlurm, folder, submit):
    code, _, told = submit("--template", "none.sh")
    assert code == 2
    assert "--template: 'none.sh' cannot be read" in told
    assert not folder.run_dir.exists()
    assert ConfigurationError.__name__ not in told
