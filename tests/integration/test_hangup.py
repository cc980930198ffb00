"""The end of the terminal, which is SIGHUP, ends each process that serves or acts as SIGTERM does."""

import signal
from pathlib import Path

import pytest

from tests.processes import ended, running
from tests.unit.tools.policy_server.test_followed import preferring

pytestmark = pytest.mark.slow

_NOBODY = ("--learner-address", "127.0.0.1:9")
_HERE = ("--address", "127.0.0.1:0")
# The arguments of each command, and words of its line once it has started.
COMMANDS = {
    "actor": (("actor", *_NOBODY), "waiting for the learner"),
    "relay": (("learner", "relay", *_NOBODY, *_HERE), "serves at"),
    "scaler": (("learner", "scaler", *_NOBODY, *_HERE), "telling KEDA"),
    "dashboard": (("learner", "dashboard", *_NOBODY, "--listen-address", "127.0.0.1:0"), "the dashboard is at"),
    "replay serve": (("learner", "replay", "serve", *_HERE, "--replay.capacity", 1000), "serving a replay buffer"),
    "serve-policy": (("learner", "serve-policy", "{run}", *_HERE), "serving version 5"),
}


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("name", COMMANDS)
def test_ends_without_an_error(name: str, number: signal.Signals, tmp_path: Path):
    (tmp_path / "policy_best.safetensors").write_bytes(preferring(0, 5))
    arguments, started = COMMANDS[name]
    with running(*(str(argument).format(run=tmp_path) for argument in arguments)) as process:
        while started not in (line := process.stdout.readline()):
            assert line, f"{name} ended before it said {started!r}"
        assert ended(process, number) == 0
        assert "Traceback" not in process.stdout.read()
