"""`rollcast scaler` in a container, asked over KEDA's contract by a loop that scales Compose's actors."""

import contextlib
import dataclasses
import json
import re
import shutil

import grpc
import pytest

from tests.e2e.conftest import ENDLESS, PACKAGES, TAG, wait_until
from tests.e2e.watch import Watch
from tests.keda import Keda
from tests.processes import ROOT

# A rollout takes an actor 20 steps of 10 ms, an update of four of them takes the trainer 320 ms: between two and three
# actors keep it busy, on any machine that keeps up.
_STEPS = {"ROLLCAST_N_ROLLOUT_STEPS": "20", "ROLLCAST_BATCH_SIZE": "4"}
_STEP = {"ROLLCAST_ENV_KWARGS": '{"step_s": 0.01}', "ROLLCAST_ENVS_PER_ACTOR": "1"}
_UPDATE = {"ROLLCAST_ALGORITHM_KWARGS": '{"update_s": 0.32}'}
# so that a test need not wait for minutes
_QUICK = {"ROLLCAST_WINDOW_S": "3", "ROLLCAST_INTERVAL_S": "0.2", "ROLLCAST_COOLDOWN_S": "5"}
# the default of `--up-above`
_UP_ABOVE = 0.1
# Measurements of three seconds in a row: longer than the window and the cooldown together, so a change would show.
_N_QUIET = 3


@pytest.fixture
def scaled(compose, tmp_path, request):
    """A compose project with a scaler, whose learner and environments take their time."""
    algorithm = tmp_path / "paced_algorithm.py"
    shutil.copy(ROOT / "tests/paced_algorithm.py", algorithm)
    algorithm.chmod(0o644)
    services = {
        "learner": {
            "environment": _STEPS | _STEP | _UPDATE,
            "volumes": [f"{algorithm}:{PACKAGES}/{algorithm.name}:ro"],
        },
        "actor": {"environment": _STEP},
        # as in deploy/kubernetes
        "scaler": {
            "image": f"rollcast-learner:{TAG}",
            "command": ["scaler"],
            "environment": {
                "ROLLCAST_LEARNER_ADDRESS": "learner:50051",
                "ROLLCAST_ADDRESS": "0.0.0.0:50052",
                "ROLLCAST_INSECURE": "true",
            }
            | _QUICK,
            # 0: the engine takes a free port
            "ports": ["127.0.0.1:0:50052"],
            "read_only": True,
            # /runs is a volume of the image, which the scaler does not use
            "tmpfs": ["/tmp", "/runs"],
            "cap_drop": ["ALL"],
            # the image's asks the learner's port
            "healthcheck": {"disable": True},
        },
    }
    file = tmp_path / "scaler.yml"
    file.write_text(json.dumps({"services": services}))
    project = dataclasses.replace(compose, files=(*compose.files, file))
    yield project
    # `compose` shows the logs of the others, and takes all of it down
    if getattr(request.node, "rep_call", None) is not None and request.node.rep_call.failed:
        print(project.run("logs", "--no-color", "scaler", check=False))  # noqa: T201  # pytest shows it


class Loop:
    """The loop of KEDA and Kubernetes for one ScaledObject: asks the scaler, and scales Compose's actors."""

    def __init__(self, project, watch):
        self._project, self._watch = project, watch
        self._keda = Keda(project.address("scaler", 50052))

    def __enter__(self):
        wait_until(self._knows_a_number, "the scaler to know a number")
        return self

    def __exit__(self, *_error):
        self._keda.__exit__()

    def _knows_a_number(self):
        with contextlib.suppress(grpc.RpcError):
            return self._keda.metric() > 0
        return False

    @property
    def n_actors(self):
        return len(self._project.containers("actor"))

    def turn(self):
        """Brings the actors to what the scaler wants; returns True if there are as many already."""
        wanted, there = self._keda.replicas(self.n_actors), self.n_actors
        if wanted != there:
            self._project.up(n_actors=wanted)
            self._watch.wait_for_training(wanted)
        return wanted == there

    def is_settled(self):
        """Returns True if, for a while, the number stays and the learner is not the one who waits."""
        return all(self.turn() and self.waiting_share() <= _UP_ABOVE for _ in range(_N_QUIET))

    def waiting_share(self):
        """Returns the share of three seconds of training that the trainer waited for its actors."""
        began, waited_s = self._waits()
        wait_until(lambda: self._waits()[0] >= began + 3, "three seconds of training")
        ended, waited_then_s = self._waits()
        return (waited_then_s - waited_s) / (ended - began)

    def _waits(self):
        """Returns the seconds of training, and those in which the trainer waited; one wait may go on."""
        status = self._watch.client.status()
        return status.seconds, status.waiting_fraction * status.seconds + status.waiting_s


@pytest.mark.parametrize("compose", [ENDLESS | {"ROLLCAST_ALGORITHM": "paced_algorithm:PacedImpala"}], indirect=True)
def test_actors_are_added_until_the_learner_no_longer_waits(scaled):
    scaled.up(n_actors=1)
    with Watch(scaled.address()) as watch:
        watch.wait_for_training(1)
        with Loop(scaled, watch) as loop:
            wait_until(loop.is_settled, "a number that stays, and a learner that does not wait", 480)
            assert loop.n_actors > 2
    # the engine writes down a moment later what a container prints
    reason = re.compile(r"actors instead of \d+: the trainer waited \d+% of its time")
    wait_until(lambda: reason.search(scaled.run("logs", "scaler")), "the reason in the scaler's log")
