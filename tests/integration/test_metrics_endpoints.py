"""`--metrics-address` of learner, actor and replay server, as Prometheus meets them."""

import signal
import socket
import urllib.request
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.processes import ended, free_port, refused, running, wait_until

pytestmark = pytest.mark.slow


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Returns the values by name and labels; nothing while nobody answers."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }
    return {}


def metrics_at(port: int) -> tuple[str, str]:
    return ("--metrics-address", f"127.0.0.1:{port}")


def test_learner_and_actor_count_the_same_rollouts(tmp_path):
    address, of_learner, of_actor = f"127.0.0.1:{free_port()}", free_port(), free_port()
    learning = ("learner", "learner", "--address", address, "--run-dir", tmp_path / "run", "--stop-return", "1e9")
    learning += ("--algorithm", "impala")
    acting = ("actor", "--learner-address", address, "--actor-id", "left-arm", "--envs-per-actor", 8)
    with running(*learning, *metrics_at(of_learner)) as learner, running(*acting, *metrics_at(of_actor)):
        wait_until(lambda: scrape(of_learner).get(("rollcast_train_updates_total",), 0) > 5, "updates")
        wait_until(lambda: ("rollcast_impala_entropy",) in scrape(of_learner), "a record")
        # first the learner's: what it has seen, the actor has made
        seen, own = scrape(of_learner), scrape(of_actor)
        sent = seen["rollcast_learner_actor_rollouts_total", "left-arm"]
        assert own["rollcast_actor_rollouts_total",] >= sent > 0
        # at most, for the rows in which an episode begins are no steps
        assert 0.8 * 512 < own["rollcast_actor_env_steps_total",] / own["rollcast_actor_rollouts_total",] <= 512
        assert own["rollcast_actor_environments",] == 8
        assert own["rollcast_actor_state_seconds_total", "acting"] > 0
        assert seen["rollcast_learner_phase", "training"] == 1
        assert seen["rollcast_learner_actors", "streaming"] == 1
        assert ended(learner, signal.SIGTERM) == 0


def test_an_evaluator_shows_that_it_plays(tmp_path):
    address, port = f"127.0.0.1:{free_port()}", free_port()
    evaluates = ("--eval-interval-s", 0.5, "--eval-episodes", 2, "--stop-return", "1e9", "--run-dir", tmp_path / "run")
    acting = ("actor", "--learner-address", address)
    with (
        running("learner", "learner", "--address", address, *evaluates),
        running(*acting, "--envs-per-actor", 8),
        running(*acting, "--role", "evaluate", *metrics_at(port)),
    ):
        wait_until(lambda: scrape(port).get(("rollcast_actor_state_seconds_total", "acting"), 0) > 0, "episodes")
        assert scrape(port)["rollcast_actor_state_seconds_total", "waiting_for_policy"] > 0


def test_a_replay_server_shows_its_buffer():
    address, port = f"127.0.0.1:{free_port()}", free_port()
    with (
        running("learner", "replay", "serve", "--address", address, *metrics_at(port)),
        running("actor", "--learner-address", address, "--envs-per-actor", 8),
    ):
        wait_until(lambda: scrape(port).get(("rollcast_replay_inserts_total",), 0) > 500, "entries")
        assert scrape(port)["rollcast_learner_actors", "streaming"] == 1


@pytest.mark.parametrize("command", ["train", "actor", "replay"])
def test_a_port_in_use_is_said_before_anything_begins(command: str, tmp_path):
    arguments = {
        "train": ("train", "--run-dir", tmp_path / "run"),
        "actor": ("actor",),
        "replay": ("replay", "serve", "--address", "127.0.0.1:0"),
    }[command]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(*arguments, *metrics_at(port), code=1)
    assert f"the address '127.0.0.1:{port}' is in use by another process" in said
    assert not (tmp_path / "run").exists()
