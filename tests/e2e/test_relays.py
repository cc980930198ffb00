"""Relays in containers, with the actors behind them: deploy/compose/relay.yml on top of docker-compose.yml."""

import shlex
import signal

import pytest

from rollcast.services.security.security import ClientSecurity
from tests.documents import commands, section_of
from tests.e2e.conftest import ENDLESS, wait_until
from tests.e2e.watch import Watch

START_S = 240


def by_relay(watch):
    """Returns the actors that play, by the container of the relay that they come through; "" for none."""
    found = {}
    for info in watch.actors():
        found.setdefault(info.via[0].rpartition("-")[0] if info.via else "", set()).add(info.actor_id)
    return found


def wait_for_rollouts(watch, n_actors):
    """Waits until each actor has sent more rollouts than up to now."""
    before = {info.actor_id: info.rollouts for info in watch.client.actors()}

    def all_go_on():
        playing = watch.actors()
        return len(playing) == n_actors and all(info.rollouts > before[info.actor_id] + 3 for info in playing)

    wait_until(all_go_on, "rollouts of every actor", START_S)


@pytest.mark.parametrize("compose", [ENDLESS | {"OVERRIDE": "deploy/compose/relay.yml"}], indirect=True)
def test_actors_go_on_through_the_other_relay_and_then_directly(compose):
    section = section_of("relays.md", "In containers")
    files, up, status, down = (shlex.split(line) for line in commands(section)[:4])
    assert files == ["export", "COMPOSE_FILE=docker-compose.yml:deploy/compose/relay.yml"], "as the project has them"
    # the images are built; two of the four actors are enough
    compose.run(*(word for word in up[2:] if word != "--build"), "--scale", "actor=2")
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2, START_S)
        wait_for_rollouts(watch, 2)
        relays = {relay.id[:12]: relay for relay in compose.containers("relay")}
        began, actors = watch.incarnations(), by_relay(watch)
        assert began == {actor.id[:12]: 1 for actor in compose.containers("actor")}
        assert len(relays) == 2
        assert set(actors) <= set(relays), "all come through relays"
        # a test has no terminal
        shown = compose.run("exec", "-T", *status[3:])
        assert all(f"{name} via {relay}-" in shown for relay, names in actors.items() for name in names), shown

        first, *_ = actors
        relays.pop(first).kill("SIGKILL")
        (second,) = relays
        wait_until(lambda: by_relay(watch) == {second: set(began)}, "all actors behind the other relay", START_S)
        wait_for_rollouts(watch, 2)
        compose.run("stop", "relay")
        wait_until(lambda: by_relay(watch) == {"": set(began)}, "all actors at the learner", START_S)
        wait_for_rollouts(watch, 2)
        assert watch.incarnations() == began, "the same processes all along"
        assert [actor.attrs["RestartCount"] for actor in compose.containers("actor")] == [0] * 2
        assert watch.client.status().rejected_rollouts == 0
    compose.run("stop")
    codes = compose.exit_codes()
    assert sorted(codes.pop("relay")) == [0, 128 + signal.SIGKILL], "the other ended in its time"
    assert codes == {"runs-folder": [0], "learner": [0], "actor": [0] * 2}
    compose.run(*down[2:])
    wait_until(lambda: compose.leftovers() == [], "nothing of it to be left")


FILES = "deploy/compose/relay.yml deploy/compose/tls.yml deploy/compose/relay-tls.yml"


@pytest.mark.parametrize("compose", [ENDLESS | {"OVERRIDE": FILES}], indirect=True)
def test_actors_come_through_a_relay_with_mutual_tls(compose, tmp_path):
    named = ":".join(["docker-compose.yml", *FILES.split()])
    assert f"export COMPOSE_FILE={named}\n" in section_of("relays.md", "In containers")
    compose.run("up", "-d", "--no-build", "--scale", "actor=1", "--scale", "relay=1")
    certs = tmp_path / "certs"
    operator = ClientSecurity(
        tls_ca=certs / "ca.pem",
        tls_cert=certs / "operator.pem",
        tls_key=certs / "operator.key",
        token_file=certs / "operator.token",
    )
    with Watch(compose.address(), operator) as watch:
        watch.wait_for_training(1, START_S)
        wait_for_rollouts(watch, 1)
        (relay,) = compose.containers("relay")
        assert set(by_relay(watch)) == {relay.id[:12]}
    assert compose.is_healthy("relay")
    held = {folder: relay.exec_run(["ls", folder]).output.decode().split() for folder in ("/tls", "/server-tls")}
    assert held == {
        "/tls": ["actor.key", "actor.pem", "actor.token", "ca.pem"],
        "/server-tls": ["ca.pem", "server.key", "server.pem", "tokens"],
    }
