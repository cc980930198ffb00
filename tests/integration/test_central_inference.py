"""A real run whose actors have their policy computed by another actor, which is killed and comes back."""

import signal
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from tests.processes import DEADLINE_S, ended, running, status_of, wait_until

pytestmark = pytest.mark.slow


def test_a_run_goes_on_while_central_inference_is_away(tmp_path: Path):
    at, inference = f"unix:{tmp_path / 'learner'}", f"unix:{tmp_path / 'inference'}"
    # its actors leave the cores to those who come and go
    learning = (
        *("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.001}'),
        *("--batch-size", 8, "--ppo.n-epochs", 1, "--stop-return", 1e9, "--total-steps", 1_000_000_000),
    )
    server = ("actor", "--learner-address", at, "--serve-environments", inference)
    actor = ("actor", "--learner-address", at, "--inference-address", inference, "--inference-timeout-s", DEADLINE_S)

    def both_say(what: str) -> None:
        """Reads the actors' logs up to such a line; the logs have one, or the test ends by its own time."""
        for acting in actors:
            said = ""
            while what not in said:
                said = acting.stdout.readline()
                assert said, f"an actor has ended before it said {what!r}"

    def goes_on(why: str) -> None:
        before = status_of(client).env_steps
        wait_until(lambda: status_of(client).env_steps > before + 500, f"steps after {why}")

    with (
        running("learner", "learner", "--address", at, "--run-dir", tmp_path / "run", *learning) as training,
        LearnerClient(at) as client,
        running(*actor, "--actor-id", "one") as one,
        running(*actor, "--actor-id", "two") as two,
    ):
        actors = (one, two)
        with running(*server) as answering:
            both_say(f"central inference at {inference} answers")
            goes_on("the answers of central inference")
            answering.kill()
        both_say(f"central inference at {inference} is away")
        goes_on("the death of central inference")
        with running(*server) as answering:
            both_say(f"central inference at {inference} answers")
            assert ended(answering, signal.SIGTERM) == 0
        assert [info.incarnation for info in client.actors()] == [1, 1]
        assert status_of(client).rejected_rollouts == 0
        for process in (*actors, training):
            assert ended(process, signal.SIGTERM) == 0
