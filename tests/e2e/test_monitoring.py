"""A real Prometheus scrapes the containers of docker-compose.yml, and evaluates the alerts."""

import json
import subprocess
import urllib.parse
import urllib.request
from contextlib import suppress

import pytest

from tests.e2e.conftest import ENDLESS, TAG
from tests.e2e.watch import Watch
from tests.processes import DEADLINE_S, wait_until

# Debian's package, since no registry of images may be reachable; the commands and the files are those of any.
_DOCKERFILE = """
FROM python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["prometheus"]
"""
_IMAGE = f"rollcast-test-prometheus:{TAG}"


@pytest.fixture(scope="module")
def prometheus_image(engine):
    command = ["docker", "build", "--network=host", "-t", _IMAGE, "-"]
    done = subprocess.run(command, input=_DOCKERFILE, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return engine.images.get(_IMAGE).id


class Prometheus:
    """The API of the project's Prometheus; while it does not answer, it knows nothing."""

    def __init__(self, compose):
        wait_until(lambda: compose.containers("prometheus")[0].ports.get("9090/tcp"), "its port")
        (binding,) = compose.containers("prometheus")[0].ports["9090/tcp"]
        self._url = f"http://127.0.0.1:{binding['HostPort']}/api/v1"

    def query(self, expression):
        """Returns the values of an expression, in any order."""
        answer = self._get(f"query?query={urllib.parse.quote(expression)}")
        return [float(sample["value"][1]) for sample in answer.get("result", ())]

    def wait_for(self, expression, holds, timeout_s=DEADLINE_S):
        """Waits until the values of an expression are as they should be, and returns those values."""
        values = []

        def as_wanted():
            values[:] = self.query(expression)
            return holds(values)

        wait_until(as_wanted, f"{expression} as expected", timeout_s)
        return values

    def alerts(self):
        """Returns alert -> state, `pending` or `firing`."""
        return {alert["labels"]["alertname"]: alert["state"] for alert in self._get("alerts").get("alerts", ())}

    def _get(self, path):
        with suppress(OSError), urllib.request.urlopen(f"{self._url}/{path}", timeout=5) as answer:
            return json.load(answer)["data"]
        return {}


@pytest.mark.parametrize(
    "compose",
    [
        {
            **ENDLESS,
            "ROLLCAST_EVAL_INTERVAL_S": "1",
            "ROLLCAST_PROMETHEUS_IMAGE": _IMAGE,
            "ROLLCAST_PROMETHEUS_PORT": "0",
        },
    ],
    indirect=True,
)
def test_prometheus_sees_learner_and_actors_and_what_is_wrong_with_them(prometheus_image, compose):
    def up(n_actors):
        profiles = ("--profile", "monitoring", "--profile", "evaluate")
        compose.run(*profiles, "up", "-d", "--no-build", "--scale", f"actor={n_actors}")

    up(n_actors=0)
    prometheus = Prometheus(compose)
    wait_until(lambda: prometheus.alerts() == {"RollcastNoActors": "pending"}, "the alert that no actors are there")
    up(n_actors=2)
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        prometheus.wait_for("up", lambda values: values == [1, 1, 1, 1])
        prometheus.wait_for("up{job='rollcast-evaluator'}", lambda values: values == [1])
        prometheus.wait_for("rollcast_learner_actors{state='streaming'}", lambda values: values == [2])
        wait_until(lambda: prometheus.alerts() == {}, "the end of the alert")
        # the same numbers as the API's, each some seconds ago
        (steps,) = prometheus.wait_for("rollcast_train_env_steps_total", lambda values: values > [0])
        assert steps <= watch.client.status().env_steps
        # an actor's first sample may be from before it acted
        acting = "rollcast_actor_state_seconds_total{job='rollcast-actor',state='acting'}"
        prometheus.wait_for(acting, lambda values: len(values) == 2 and min(values) > 0)
    compose.containers("learner")[0].kill("SIGKILL")
    wait_until(lambda: "RollcastLearnerDown" in prometheus.alerts(), "the alert that the learner is down")
