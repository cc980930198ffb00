"""`rollcast doctor RUN_DIR`; test_diagnosis.py has what it says of a learner."""

import io
import json
from pathlib import Path

import pytest

from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError
from rollcast.tools.doctor.command import doctor
from rollcast.tools.settings import DoctorSettings
from tests.unit.learner.checkpoints.test_listing import make_run, write_checkpoint, write_records
from tests.unit.learner.health.test_rules import HEALTHY, records
from tests.unit.tools.printed import printed


def said(run: RunDirectory, *options: str) -> str:
    return printed(doctor, DoctorSettings, run.path, *options)


def test_a_run_that_has_ended_is_judged_by_its_records(tmp_path: Path):
    run = make_run(tmp_path, total_steps=1000, ppo={"max_grad_norm": 0.5, "normalize_rewards": False})
    rows = records(**HEALTHY | {"ppo__critic_grad_norm": 12.0}, time=1.0)
    evaluation = {"time": 2.0, "env_steps": 80_000, "eval/evaluations": 3, "eval/skipped": 4}
    write_records(run, *rows, evaluation)
    write_checkpoint(run, 1, has_ended=True)
    assert said(run).splitlines() == [
        "finished, 80,000 steps, 200 updates",
        "note:  training has finished without reaching its goal: its mean return is 20.0, and the goal is 475 "
        "(--stop-return)",
        "       resume it with more --total-steps, or begin another with a recipe of `rollcast recipes`, or with "
        "another --algorithm",
        "note:  ppo/critic_grad_norm has stayed above 20 times its bound of 0.5 for 100 updates (median 12): the "
        "targets are too large for the critic",
        "       try --ppo.normalize-rewards or a higher --ppo.max-grad-norm",
        "note:  4 due policies were not evaluated, 3 were: the evaluator is too slow for the interval",
        "       raise --eval-interval-s or --eval-interval-steps, lower --eval-episodes, or start another evaluator",
    ]
    document = json.loads(said(run, "--json-output"))
    assert document["learning_is_judged"]
    assert [finding["severity"] for finding in document["findings"]] == ["note", "note", "note"]


@pytest.mark.parametrize(
    ("settings", "record", "expected"),
    [
        ({}, {"train/mean_return": 9.2}, "its mean return is 9.2, and the goal is 475"),
        ({}, {"train/mean_return": 9.2, "eval/mean_return": 88.5}, "its mean return is 88.5, and the goal is 475"),
        ({"stop_return": 300.0}, {"train/mean_return": 9.2}, "its mean return is 9.2, and the goal is 300"),
        ({}, {"train/mean_return": 20.7363}, "its mean return is 20.7, and the goal is 475"),
        ({}, {"train/mean_return": 474.96}, "its mean return is 474.96, and the goal is 475"),
        ({"stop_on": "train"}, {"train/mean_return": 9.2, "eval/mean_return": 500.0}, "its mean return is 9.2, and"),
        ({}, {"train/mean_return": 480.0}, None),
        ({}, {"train/mean_return": 470.0, "eval/mean_return": 475.0}, None),
        ({"stop_return": 9.0}, {"train/mean_return": 9.2}, None),
        ({"env_id": "own:Env-v0"}, {"train/mean_return": 9.2}, None),
    ],
)
def test_a_run_that_has_finished_below_its_goal_is_told(
    tmp_path: Path, settings: dict[str, object], record: dict[str, object], expected: str | None
):
    run = make_run(tmp_path, **settings)
    write_records(run, *records(**HEALTHY, time=1.0), {"time": 2.0, "env_steps": 80_000} | record)
    write_checkpoint(run, 1, has_ended=False)
    assert said(run).splitlines()[1:] == ["nothing is wrong"], "it has not finished"
    write_checkpoint(run, 2, has_ended=True)
    lines = said(run).splitlines()
    if expected is None:
        assert lines[1:] == ["nothing is wrong"]
    else:
        assert lines[1].startswith(f"note:  training has finished without reaching its goal: {expected}")
        assert lines[2].strip().startswith("resume it with more --total-steps")


def test_a_healthy_run_has_nothing_wrong(tmp_path: Path):
    run = make_run(tmp_path)
    write_records(run, *records(**HEALTHY, time=1.0))
    write_checkpoint(run, 1, has_ended=False)
    assert said(run).splitlines() == ["stopped, 80,000 steps, 200 updates", "nothing is wrong"]


def test_a_run_that_was_killed_before_its_first_checkpoint_is_told(tmp_path: Path):
    run = make_run(tmp_path)
    write_records(run, *records(3, **HEALTHY, time=1.0))
    lines = said(run).splitlines()
    assert lines[1:] == [
        "note:  the run ended before its first checkpoint: it has failed, or its process was killed",
        "       begin it again with --resume, in its folder and with its settings; a lower --checkpoint-interval-s "
        "gives an earlier checkpoint",
        "nothing shows whether the run learnt: 30 episodes have ended; expected at least 100; begin the run again with "
        "--resume",
    ]
    with run.locked():
        assert "checkpoint" not in said(run)


def test_one_of_a_kind_is_not_called_many(tmp_path: Path):
    run = make_run(tmp_path)
    record = {"time": 1.0, "env_steps": 1, "train/updates": 1, "train/episodes": 1}
    write_records(run, record | {"eval/evaluations": 0, "eval/skipped": 1})
    with run.locked():
        lines = said(run).splitlines()
    assert lines[0] == "training, 1 step, 1 update"
    assert lines[1].startswith("note:  the only due policy was not evaluated")
    assert "1 episode has ended; expected at least 100" in lines[-1]


def test_without_enough_data_it_says_so(tmp_path: Path):
    run = make_run(tmp_path)
    with run.locked():
        lines = said(run).splitlines()
    assert lines[1:] == [
        "nothing is wrong",
        "it is too early to tell whether the run learns: 0 episodes have ended; expected at least 100; ask again later",
    ]
    write_records(run, *records(3, **HEALTHY, time=1.0))
    assert "30 episodes have ended" in said(run)
    assert not json.loads(said(run, "--json-output"))["learning_is_judged"]


@pytest.mark.parametrize(
    ("checkpoints", "advice"),
    [
        ((False,), "continue the run with --resume"),
        (
            (False, True),
            "resume the run with more --total-steps, or give the environment a time limit if its episodes are long",
        ),
    ],
)
def test_a_run_that_no_longer_trains_is_not_asked_again_later(
    tmp_path: Path, checkpoints: tuple[bool, ...], advice: str
):
    run = make_run(tmp_path, env_id="own:Env-v0")
    write_records(run, *records(3, **HEALTHY, time=1.0))
    for number, has_ended in enumerate(checkpoints):
        write_checkpoint(run, number, has_ended=has_ended)
    assert said(run).splitlines()[2:] == [
        f"nothing shows whether the run learnt: 30 episodes have ended; expected at least 100; {advice}"
    ]
    with run.locked():
        assert said(run).endswith("expected at least 100; ask again later\n")


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="is not a run: the folder does not exist"):
        said(RunDirectory(tmp_path / "nowhere"))


def test_the_exit_code_is_right_whoever_reads_the_output(tmp_path: Path):
    class Unread(io.StringIO):
        def write(self, _text: str) -> int:
            raise SystemExit(0)

    settings = DoctorSettings.from_command_line("rollcast doctor", ["--address", f"unix:{tmp_path / 'nobody'}"])
    assert doctor(settings, Unread()) == doctor(settings, io.StringIO()) == 1
