import io
from pathlib import Path

import pytest

from rollcast.learner.commands.plot import plot
from rollcast.learner.settings.plot import PlotSettings
from rollcast.services.errors import ConfigurationError
from tests.unit.learner.runs.test_curves import run_of

RECORDS = [(step, float(step)) for step in range(0, 100, 10)]


def plotted(*arguments: object) -> str:
    out = io.StringIO()
    assert plot(PlotSettings.from_command_line("rollcast plot", [str(argument) for argument in arguments]), out) == 0
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "beginning"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_draws_a_picture_of_each_kind(tmp_path: Path, suffix: str, beginning: bytes):
    runs = [run_of(tmp_path / f"run{seed}", RECORDS, seed=seed).path for seed in range(3)]
    out = tmp_path / f"curves{suffix}"
    said = plotted(*runs, "--out", out, "--over", "seconds", "--threshold", 50)
    assert said == f"{out}: train/mean_return of ppo CartPole-v1 (median and quartiles of 3 runs)\n"
    assert out.read_bytes().startswith(beginning)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "curves.gif"), "'curves.gif'; expected a file that ends with .png or .svg"),
        (("--metric", "loss"), "has no values of 'loss'"),
        (("--out", "/nowhere/curves.png"), "cannot be written: No such file or directory"),
    ],
)
def test_rejects_what_cannot_be_drawn(tmp_path: Path, arguments: tuple[str, ...], message: str):
    run = run_of(tmp_path / "run", RECORDS).path
    with pytest.raises(ConfigurationError, match=message):
        plotted(run, *arguments)
