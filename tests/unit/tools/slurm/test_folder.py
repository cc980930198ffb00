from pathlib import Path

from rollcast.tools.slurm.folder import Job, SlurmFolder


def test_job_names_tell_runs_apart_whose_directories_have_one_name(tmp_path):
    names = {SlurmFolder(tmp_path / parent / "mine").job_name(job) for parent in ("a", "b") for job in Job}
    assert len(names) == 2 * len(Job)
    assert all("-mine-" in name for name in names)


def test_job_name_stays_when_the_directory_is_given_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative = SlurmFolder(Path("mine"))
    assert relative.job_name(Job.LEARNER) == SlurmFolder(tmp_path / "mine").job_name(Job.LEARNER)


def test_job_name_has_no_comma_and_no_space(tmp_path):
    name = SlurmFolder(tmp_path / "my run, the 2nd").job_name(Job.ACTORS)
    assert name.startswith("actors-my-run-the-2nd-")
