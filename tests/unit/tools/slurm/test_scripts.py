"""Batch scripts: their text, and their doings in a real shell, with Slurm's commands played."""

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from rollcast.tools.slurm.folder import Job, SlurmFolder
from rollcast.tools.slurm.scripts import Resources, Surroundings, array_script, learner_script
from rollcast.tools.slurm.template import TEMPLATE
from tests.fake_slurm import FakeSlurm
from tests.processes import DEADLINE_S, wait_until

ANY = Resources()


class Scripts:
    """The scripts of a run whose program is a line of shell."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.folder = SlurmFolder(tmp_path / "my run")
        self.folder.logs.mkdir(parents=True)
        self.folder.rendezvous.mkdir()

    def surroundings(self, *, program="exit 0", prolog="", python_path=""):
        """The program says what it was given, then does something."""
        file = self.tmp_path / "program"
        file.write_text(f'#!/bin/bash\necho began {shlex.quote(str(self.tmp_path))} "$@"\n{program}\n')
        file.chmod(0o755)
        return Surroundings(
            program=[str(file)],
            working_directory=self.tmp_path,
            python_path=python_path,
            prolog=prolog,
            template=TEMPLATE,
            signal_s=120,
            max_restarts=2,
            patience_s=600.0,
        )

    def learner(self, resources=ANY, **surroundings):
        return learner_script(self.folder, resources, self.surroundings(**surroundings))

    def actors(self, resources=ANY, **surroundings):
        return array_script(self.folder, Job.ACTORS, resources, self.surroundings(**surroundings), log_name="actor")

    def start(self, text, *, restarts="0", **variables):
        """Runs a script as Slurm does, task 3 of array 12."""
        file = self.tmp_path / "job.sh"
        file.write_text(text)
        slurm = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
        return subprocess.Popen(
            ["bash", str(file)],
            env=os.environ | slurm | {"SLURM_RESTART_COUNT": restarts} | variables,
            start_new_session=True,
        )

    def run(self, text, **options):
        """Returns the exit code of a script."""
        return self.start(text, **options).wait(20)

    def stop(self, text, log, **options):
        """Returns the exit code of a script that is told to stop while its program, `SAVES`, runs."""
        job = self.start(text, **options)
        wait_until(lambda: "ready" in self.log(log), "the process")
        job.send_signal(signal.SIGTERM)
        return job.wait(DEADLINE_S)

    def log(self, name):
        file = self.folder.logs / f"{name}.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def scripts(tmp_path):
    return Scripts(tmp_path)


def directives(text):
    return re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)


class TestText:
    def test_asks_for_what_is_wanted_and_for_no_more(self, scripts):
        resources = Resources(
            partition="gpu", account="lab", time="8:00:00", gpus="a100:2", cpus=6, memory="32G", extra=["-C fast"]
        )
        lines = directives(scripts.learner(resources))
        assert {"--partition=gpu", "--account=lab", "--time=8:00:00", "--gpus=a100:2", "--mem=32G", "-C fast"} < set(
            lines
        )
        assert {"--requeue", "--signal=B:TERM@120", "--cpus-per-task=6", "--ntasks=1"} < set(lines)
        assert not [line for line in directives(scripts.actors()) if line.startswith(("--gpus", "--time", "--mem"))]

    def test_quotes_paths_with_spaces_and_percents(self, tmp_path):
        scripts = Scripts(tmp_path / "100%")
        (output,) = [line for line in directives(scripts.learner()) if line.startswith("--output")]
        assert output == f'--output="{tmp_path}/100%%/my run/slurm/logs/slurm-learner-%j.out"'

    @pytest.mark.parametrize("script", ["learner", "actors"])
    def test_is_shell(self, scripts, script):
        text = getattr(scripts, script)(prolog="module load cuda\nconda activate rl")
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
        assert text.index("module load cuda\nconda activate rl\n") < text.index("run ")

    def test_holds_no_secret(self, scripts):
        for text in (scripts.learner(), scripts.actors()):
            assert "--tokens-file" in text or "--token-file" in text
            assert "--token " not in text


class TestLearnersJob:
    def test_gives_the_process_its_folder_address_and_certificates(self, scripts, fake_slurm: FakeSlurm):
        assert scripts.run(scripts.learner()) == 0
        told = scripts.log("learner-12-attempt0")
        for option in ("--run-dir", "--resume auto", "--address-file", "--tls-cert", "--tls-key", "--tokens-file"):
            assert f" {option} " in told
        assert f"--address-file {scripts.folder.address_file} " in told

    def test_leaves_settings_of_the_submitting_shell_out(self, scripts, fake_slurm: FakeSlurm):
        text = scripts.learner(program="env | grep ROLLCAST_; exit 0", prolog="export ROLLCAST_DEVICE=cpu")
        assert scripts.run(text, ROLLCAST_SEED="7") == 0
        assert "ROLLCAST_DEVICE=cpu" in scripts.log("learner-12-attempt0")
        assert "ROLLCAST_SEED" not in scripts.log("learner-12-attempt0")

    def test_the_end_of_training_cancels_actors_that_wait_in_the_queue(self, scripts, fake_slurm: FakeSlurm):
        assert scripts.run(scripts.learner()) == 0
        cancelled = fake_slurm.calls("scancel")
        assert [
            f"--name={scripts.folder.job_name(job)}" in call
            for job, call in zip((Job.ACTORS, Job.EVALUATORS), cancelled, strict=True)
        ] == [True, True]
        assert all(call.endswith(" --state=PENDING") for call in cancelled)
        assert not fake_slurm.calls("scontrol")

    @pytest.mark.parametrize(("calls", "n_cancelled"), [(1, 2), (11, 4)], ids=["they end", "they stay"])
    def test_the_end_of_training_waits_for_actors_and_cancels_those_that_stay(
        self, scripts, fake_slurm: FakeSlurm, calls, n_cancelled
    ):
        fake_slurm.answer("squeue", "echo 13_0")
        if calls == 1:
            fake_slurm.answer("squeue", ":", call=2)
        # a function wins over the command: no time passes
        text = scripts.learner(prolog="sleep() { :; }")
        assert scripts.run(text) == 0
        assert len(fake_slurm.calls("scancel")) == n_cancelled

    def test_a_failure_cancels_all_actors_and_is_the_jobs(self, scripts, fake_slurm: FakeSlurm):
        assert scripts.run(scripts.learner(program="exit 1")) == 1
        assert len(fake_slurm.calls("scancel")) == 2
        assert not [call for call in fake_slurm.calls("scancel") if "PENDING" in call]

    @pytest.mark.parametrize("attempt", ["0", "3"])
    def test_told_to_stop_it_waits_for_the_process_and_goes_back_into_the_queue(
        self, scripts, fake_slurm: FakeSlurm, attempt
    ):
        fake_slurm.answer("squeue", "echo RUNNING")
        assert scripts.stop(scripts.learner(program=SAVES), f"learner-12-attempt{attempt}", restarts=attempt) == 0
        assert "saved" in scripts.log(f"learner-12-attempt{attempt}")
        assert fake_slurm.calls("scontrol") == ["scontrol requeue 12"]
        assert not fake_slurm.calls("scancel")

    @pytest.mark.parametrize(
        ("restarts", "n_cancelled"), [("0", 2), ("1", 0)], ids=["cancelled", "requeued by Slurm, as for a preemption"]
    )
    def test_ended_by_slurm_it_puts_itself_into_no_queue_and_keeps_actors_if_it_comes_back(
        self, scripts, fake_slurm: FakeSlurm, restarts, n_cancelled
    ):
        fake_slurm.answer("squeue", "echo COMPLETING")
        fake_slurm.answer("scontrol", f"echo 'JobId=12 Requeue=1 Restarts={restarts} BatchFlag=1'")
        assert scripts.stop(scripts.learner(program=SAVES), "learner-12-attempt0") == 0
        assert "saved" in scripts.log("learner-12-attempt0")
        assert not fake_slurm.calls("scontrol requeue")
        assert len(fake_slurm.calls("scancel")) == n_cancelled

    def test_fails_if_the_queue_does_not_take_it_back(self, scripts, fake_slurm: FakeSlurm):
        fake_slurm.answer("squeue", "echo RUNNING")
        fake_slurm.refuse("scontrol", "Requested operation is presently disabled")
        assert scripts.stop(scripts.learner(program=SAVES), "learner-12-attempt0") == 1
        assert "presently disabled" in scripts.log("learner-12-attempt0")
        assert len(fake_slurm.calls("scancel")) == 2


# ends at SIGTERM only, after another moment, as a learner that writes a checkpoint
SAVES = "trap 'sleep 0.2; echo saved; exit 0' TERM\necho ready\nwhile :; do sleep 0.05; done"


class TestActorsTask:
    def test_is_named_after_its_index(self, scripts, fake_slurm: FakeSlurm):
        fake_slurm.answer("squeue", "echo 11 RUNNING")
        assert scripts.run(scripts.actors()) == 0
        told = scripts.log("actor-3-12-attempt0")
        assert "--actor-id actor-3" in told
        assert f"--learner-address {scripts.folder.address} " in told

    def test_has_nothing_to_do_after_the_learners_end(self, scripts, fake_slurm: FakeSlurm):
        assert scripts.run(scripts.actors()) == 0
        assert "began" not in scripts.log("actor-3-12-attempt0")

    def test_acts_if_the_queue_does_not_answer(self, scripts, fake_slurm: FakeSlurm):
        fake_slurm.refuse("squeue", "Unable to contact slurm controller")
        assert scripts.run(scripts.actors()) == 0
        assert "began" in scripts.log("actor-3-12-attempt0")

    @pytest.mark.parametrize("leaves_address", [False, True])
    def test_ends_when_its_learner_has_left_the_queue(self, scripts, fake_slurm: FakeSlurm, leaves_address):
        """One that was killed leaves its address."""
        if leaves_address:
            scripts.folder.address_file.write_text("")
        fake_slurm.answer("squeue", "echo 11 RUNNING", call=1)
        fake_slurm.answer("squeue", "exit 1", call=2)  # a queue that does not answer says nothing
        text = scripts.actors(program=SAVES, prolog="sleep() { command sleep 0.01; }")
        assert scripts.run(text) == 0
        assert "saved" in scripts.log("actor-3-12-attempt0")
        assert len(fake_slurm.calls("squeue")) == 3
        assert not fake_slurm.calls("scontrol"), "it does not come back"

    @pytest.mark.parametrize(
        ("ends_with", "restarts", "code", "calls"),
        [(0, "0", 0, []), (2, "0", 2, []), (1, "1", 0, ["scontrol requeue 12_3"]), (1, "2", 1, [])],
        ids=["its end", "wrong settings", "a failure", "a failure too many"],
    )
    def test_only_a_failure_is_started_again_and_so_many_times(
        self, scripts, fake_slurm: FakeSlurm, ends_with, restarts, code, calls
    ):
        fake_slurm.answer("squeue", "echo 11 RUNNING")
        scripts.folder.address_file.touch()
        assert scripts.run(scripts.actors(program=f"exit {ends_with}"), restarts=restarts) == code
        assert fake_slurm.calls("scontrol") == calls

    def test_goes_behind_a_learner_that_waits_in_the_queue(self, scripts, fake_slurm: FakeSlurm):
        fake_slurm.answer("squeue", "echo 11 PENDING")
        fake_slurm.answer("squeue", "echo 11 RUNNING", call=1)
        assert scripts.run(scripts.actors(program="exit 1")) == 0
        assert fake_slurm.calls("scontrol") == [
            "scontrol requeue 12_3",
            "scontrol update JobId=12_3 Dependency=after:11",
        ]

    @pytest.mark.parametrize(("state", "calls"), [("RUNNING", ["scontrol requeue 12_3"]), ("COMPLETING", [])])
    def test_told_to_stop_it_goes_back_into_the_queue_unless_it_was_cancelled(
        self, scripts, fake_slurm: FakeSlurm, state, calls
    ):
        fake_slurm.answer("squeue", f"echo {state}")
        fake_slurm.answer("squeue", "echo 11 RUNNING", call=1)
        assert scripts.stop(scripts.actors(program=SAVES), "actor-3-12-attempt0") == 0
        assert fake_slurm.calls("scontrol") == calls
