import shlex
import subprocess
from pathlib import Path

import pytest

from rollcast.tools.commands import COMMANDS
from rollcast.tools.completion import completion_script
from rollcast.tools.settings import CompletionSettings

BASH = completion_script(CompletionSettings.from_command_line("rollcast completion", ["bash"]))


def completed(*words: str, folder: Path) -> list[str]:
    """Returns bash's offers after these words, the last of which is begun."""
    script = (
        f"set -u\n{BASH}\ncomplete -p rollcast >/dev/null\n"
        f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}\n"
        '_rollcast\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=folder, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("rollcast", "ev"), {"evaluate"}),
        (("rollcast", ""), set(COMMANDS)),
        (("rollcast", "train", "--n-act"), {"--n-actors"}),
        (("rollcast", "train", "--impala.learn"), {"--impala.learning-rate", "--impala.learning-rate-schedule"}),
        (("rollcast", "train", "--no-det"), {"--no-deterministic"}),
        (("rollcast", "train", "--help"), {"--help", "--help-all"}),
        (("rollcast", "train", "--algorithm", ""), {"impala", "ppo", "appo", "sac", "dqn", "r2d2"}),
        (("rollcast", "train", "--seed", "1", "--device", "cu"), {"cuda"}),
        (("rollcast", "train", "--config", "ru"), {"run.yaml", "runs"}),
        (("rollcast", "train", "--seed", ""), set()),
        (("rollcast", "evaluate", "ru"), {"run.yaml", "runs"}),
        (("rollcast", "replay", "se"), {"serve"}),
        (("rollcast", "completion", "b"), {"bash"}),
    ],
)
def test_bash_offers_possible_continuations(words: tuple[str, ...], offered: set[str], tmp_path: Path):
    (tmp_path / "run.yaml").write_text("")
    (tmp_path / "runs").mkdir()
    assert set(completed(*words, folder=tmp_path)) == offered
