"""`rollcast learner` goes and comes back; its actors, which it has not started, wait for it."""

import signal
from pathlib import Path

import pytest

from services.client import LearnerClient
from services.errors import RollcastError
from services.status import LearnerStatus
from tests.processes import free_port, running, wait_until

pytestmark = pytest.mark.slow


def status(address: str) -> LearnerStatus | None:
    """How the learner stands; None while there is none."""
    try:
        with LearnerClient(address, timeout_s=2.0) as client:
            return client.status()
    except RollcastError:
        return None


def wait_for_updates(address: str) -> None:
    wait_until(lambda: (now := status(address)) is not None and now.updates > 5, "updates", 40)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_actor_goes_on_with_the_next_learner(number: signal.Signals, tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    learner = ("learner", "learner", "--address", address, "--stop-return", 1e9)
    with running("actor", "--learner-address", address) as actor:
        with running(*learner, "--run-dir", tmp_path / "first") as first:
            wait_for_updates(address)
            first.send_signal(number)
            assert first.wait(5) == (0 if number is signal.SIGTERM else -number)
        with running(*learner, "--run-dir", tmp_path / "second") as second:
            wait_for_updates(address)
            now = status(address)
            assert now is not None
            assert now.policy_lag_mean >= 0, "what was played for the first learner is not learnt from"
            with LearnerClient(address) as client:
                (info,) = client.actors()
                assert info.incarnation == 1, "the same process"
                client.stop()
            # unlike a signal, this is the end of training
            assert second.wait(8) == 0
            assert actor.wait(8) == 0
    assert (tmp_path / "second" / "policy_last.safetensors").is_file()
    assert (tmp_path / "first" / "policy_last.safetensors").is_file() or number is signal.SIGKILL
