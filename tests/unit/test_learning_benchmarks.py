"""The benchmarks of learning count every failure, and tell which marks their results meet."""

import json
from pathlib import Path

import pytest

from benchmarks import first_contact, recipes
from tests.documents import text_of


def row(task: str, algorithm: str, *returns: float) -> list[dict[str, object]]:
    return [
        {"task": task, "algorithm": algorithm, "seed": 100 + i, "means": {"likeliest": value - 1, "drawn": value}}
        for i, value in enumerate(returns)
    ]


def failed(task: str, algorithm: str, seed: int) -> dict[str, object]:
    return {"task": task, "algorithm": algorithm, "seed": seed, "failure": "out of memory"}


def test_the_marks_compare_medians_with_those_of_peers_and_name_what_misses_them():
    results = [
        *row("cartpole", "ppo", 480, 500, 20),
        *row("cartpole", "sb3-ppo", 500),
        *row("pendulum", "ppo", -900, -1000, -1100),
        *row("pendulum", "advised", -900, -1000, -1100),
        *row("pendulum", "sb3-ppo", -1021),
        *row("pendulum", "sb3-sac", -150),
        *row("door-key", "ppo", 0.9),
        failed("door-key", "ppo", 101),
        failed("door-key", "ppo", 102),
        *row("door-key", "sb3-ppo", 0.96),
        *row("breakout", "ppo", 5.5),  # no peer has been run on it
    ]
    assert first_contact.marks(results) == [
        "ppo is level with SB3's PPO on 2 of 3 tasks; not on door-key (-inf, theirs 0.96)",
        "advised is level with the best of SB3's on 0 of 1 tasks; not on pendulum (-1000, theirs -150)",
        "runs of ours below random actions: cartpole by ppo, seed 102",
        "runs of ours that failed: door-key by ppo, seed 101, door-key by ppo, seed 102",
    ]


def test_without_results_no_mark_is_met():
    default, advised, *others = first_contact.marks([])
    assert default.endswith("on 0 of 0 tasks")
    assert advised.endswith("on 0 of 0 tasks")
    assert all(line.endswith(": none") for line in others)


@pytest.mark.parametrize("name", first_contact.TASKS)
def test_the_advice_of_each_task_stands_in_the_table_of_algorithms(name: str):
    algorithm, settings = first_contact.advised(first_contact.TASKS[name])
    rows = [line for line in text_of("choose_algorithm.md").splitlines() if line.startswith("|")]
    if has_memory := settings[:2] == ("--recurrence", "gru"):
        settings = settings[2:]  # these stand beside the name of the algorithm
    found = [line for line in rows if (f"`{algorithm}`" in line) and has_memory == ("--recurrence gru" in line)]
    assert any(" ".join(settings) in line for line in found)


def test_runs_that_are_there_are_not_made_again_and_one_that_fails_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in row("cartpole", "ppo", 500.0)))
    made = []

    def measure(task: str, algorithm: str, seed: int) -> dict[str, object]:
        made.append((task, algorithm, seed))
        return failed(task, algorithm, seed)

    monkeypatch.setattr(first_contact, "measure", measure)
    command = ["first_contact", "cartpole", "--algorithms", "ppo,sac", "--seeds", "2", "--results", str(path)]
    for _ in range(2):
        monkeypatch.setattr("sys.argv", command)
        first_contact.main()
    assert made == [("cartpole", "ppo", 101)], "PPO has been run with seed 100, and SAC is not for discrete actions"
    printed = capsys.readouterr().out
    assert "| `cartpole` | 500 (1/2), 1 failed |" in printed
    assert "runs of ours that failed: cartpole by ppo, seed 101\n" in printed


@pytest.mark.slow
def test_a_seed_whose_command_fails_counts_against_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert recipes.measure("ppo-cartpole", [100], 1, tmp_path, ("--no-such-option", "1"))[3] == "0 of 1, 1 failed"
    assert "ppo-cartpole, seed 100: failed: " in (printed := capsys.readouterr().out)
    assert "no-such-option" in printed
