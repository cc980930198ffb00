"""The profiles of docker-compose.yml: a real Prometheus, a page, and an evaluator."""

import json
import subprocess
import urllib.parse
import urllib.request
from contextlib import suppress

import pytest

from tests.e2e.conftest import ENDLESS, KILL, TAG, wait_until
from tests.e2e.watch import Watch
from tests.processes import DEADLINE_S

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
            "ROLLCAST_EVAL_EPISODES": "3",
            "ROLLCAST_DASHBOARD_PORT": "0",
            "ROLLCAST_PROMETHEUS_IMAGE": _IMAGE,
            "ROLLCAST_PROMETHEUS_PORT": "0",
        },
    ],
    indirect=True,
)
def test_prometheus_a_page_and_an_evaluator_are_profiles_of_the_same_stack(prometheus_image, compose):
    """One stack for all profiles, since its start takes its time."""
    profiles = (word for name in ("monitoring", "evaluate", "dashboard") for word in ("--profile", name))
    compose.run(*profiles, "up", "-d", "--no-build")
    prometheus = Prometheus(compose)
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        assert len(watch.incarnations()) == 2, "the evaluator is no actor"

        # test_compose.py opens the page in a browser
        wait_until(lambda: compose.is_healthy("dashboard"), "the health of the page")
        url = f"http://{compose.address('dashboard', 8080)}/"

        def shows_the_run():
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as page:
                text = page.read().decode()
            return all(word in text for word in ("TRAINING", *watch.incarnations()))

        wait_until(shows_the_run, "a page with both actors")

        # an evaluator that ends by itself, as when memory runs out, comes back
        def evaluations():
            evaluation = watch.client.status().evaluation
            return 0 if evaluation is None else evaluation.evaluations

        wait_until(evaluations, "an evaluation")
        wait_until(lambda: compose.is_healthy("evaluator"), "health")
        (evaluator,) = compose.containers("evaluator")
        evaluator.exec_run(KILL)
        wait_until(lambda: evaluator.reload() or evaluator.attrs["RestartCount"] == 1, "the engine's restart")
        before = evaluations()
        # the one under way may have been reported before it was killed
        wait_until(lambda: evaluations() > before + 1, "more evaluations")

        prometheus.wait_for("up", lambda values: values == [1, 1, 1, 1])
        prometheus.wait_for("up{job='rollcast-evaluator'}", lambda values: values == [1])
        prometheus.wait_for("rollcast_learner_actors{state='streaming'}", lambda values: values == [2])
        wait_until(lambda: prometheus.alerts() == {}, "no alert")
        # the same numbers as the API's, each some seconds ago
        (steps,) = prometheus.wait_for("rollcast_train_env_steps_total", lambda values: values > [0])
        assert steps <= watch.client.status().env_steps
        # an actor's first sample may be from before it acted
        acting = "rollcast_actor_state_seconds_total{job='rollcast-actor',state='acting'}"
        prometheus.wait_for(acting, lambda values: len(values) == 2 and min(values) > 0)
        watch.client.stop()
    compose.wait_for_the_end(learner=[0], actor=[0, 0], evaluator=[0])
    wait_until(lambda: "RollcastLearnerDown" in prometheus.alerts(), "the alert that the learner is down")
