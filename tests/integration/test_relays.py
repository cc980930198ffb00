"""Relays as processes of their own: training through them, and their loss."""

import contextlib
import signal
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from tests.chaos.acting import read_acknowledgements
from tests.chaos.learners import QueueLearner
from tests.chaos.processes import SupervisedActor
from tests.processes import ended, free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow


def relay(port: int, learner_address: str, *options: object) -> tuple[object, ...]:
    return (
        *("learner", "relay", "--address", f"127.0.0.1:{port}", "--learner-address", learner_address),
        *("--relay-id", f"relay-{port}", *options),
    )


def actor(addresses: str, *options: object) -> tuple[object, ...]:
    return ("actor", "--learner-address", addresses, "--envs-per-actor", 8, *options)


def learner(port: int, run_dir: Path, *options: object) -> tuple[object, ...]:
    return (
        *("learner", "learner", "--address", f"127.0.0.1:{port}", "--run-dir", run_dir),
        *("--algorithm", "impala", "--n-rollout-steps", 16, "--batch-size", 8, "--torch-threads", 1),
        # leaves the cores to others
        *("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.0005}'),
        *("--stop-return", 1e9, "--log-level", "INFO", *options),
    )


def has_policy(address: str) -> bool:
    """Returns whether a relay has its learner."""
    try:
        with LearnerClient(address) as client:
            client.get_policy()
    except RollcastError:
        return False
    return True


def test_training_in_rounds_through_two_relays_in_a_row_ends_everywhere(tmp_path: Path):
    """Actors that play ahead are behind the relays of the tests below."""
    options = ("--algorithm", "ppo", "--ppo.n-epochs", 1)
    ports = free_port(), free_port(), free_port()
    own, near, far = (f"127.0.0.1:{port}" for port in ports)
    with (
        running(*relay(ports[1], own)) as first,
        running(*relay(ports[2], near)) as second,
        running(*actor(far, "--actor-id", "far")) as behind_two,
        running(*actor(near, "--actor-id", "near")) as behind_one,
        running(*learner(ports[0], tmp_path / "run", "--total-steps", 10**9, *options)) as training,
        LearnerClient(own) as client,
    ):
        wait_until(lambda: status_of(client).updates > 20, "training")
        wait_until(lambda: status_of(client).actors_alive == 2, "both actors")
        client.stop()
        for process in (training, behind_two, behind_one, first, second):
            assert ended(process) == 0, process.stdout.read()


def test_relays_that_are_killed_or_told_to_stop_lose_nothing_and_repeat_nothing(tmp_path: Path):
    ports = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(QueueLearner(7))
        own = f"127.0.0.1:{serving.port}"
        relays = [stack.enter_context(running(*relay(port, own))) for port in ports]
        wait_until(lambda: all(has_policy(f"127.0.0.1:{port}") for port in ports), "the relays")
        # the second relay's actors have no other way back
        ways = (f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]},{own}", f"127.0.0.1:{ports[1]}")
        actors = []
        for i in range(4):
            actors.append(SupervisedActor(f"chaos-{i}", ways[i % 2], tmp_path))
            stack.callback(actors[-1].close)

        def all_go_on(what: str) -> None:
            before = {one.actor_id: serving.ledger.count(one.actor_id) for one in actors}
            wait_until(lambda: all(serving.ledger.count(name) > n + 6 for name, n in before.items()), what)

        all_go_on("all actors to be heard")
        infos = {info.actor_id: info for info in serving.actors.actor_infos}
        assert {infos[one.actor_id].via for one in actors} == {(f"relay-{port}",) for port in ports}
        for turn in range(4):
            killed, number = turn % 2, signal.SIGTERM if turn == 2 else signal.SIGKILL
            assert ended(relays[killed], number) == (0 if turn == 2 else -number)
            if killed == 1:
                relays[1] = stack.enter_context(running(*relay(ports[1], own)))
            all_go_on(f"all actors to go on after kill {turn}")
            if killed == 0:
                relays[0] = stack.enter_context(running(*relay(ports[0], own)))
        for one in actors:
            assert one.close(), one.log.read_text()
        acknowledged = {one.actor_id: read_acknowledgements(one.acknowledgements) for one in actors}
        assert [one.n_starts for one in actors] == [1] * 4, "the same processes all along"
        stack.pop_all().close()
    serving.check_whole(acknowledged, more_than=24)


def test_a_killed_durable_learner_goes_on_behind_a_relay(tmp_path: Path):
    port, relay_port = free_port(), free_port()
    own, run = f"127.0.0.1:{port}", tmp_path / "run"
    options = ("--durable", "--resume", "auto")
    with (
        running(*relay(relay_port, own)) as relaying,
        running(*actor(f"127.0.0.1:{relay_port}", "--actor-id", "a")) as acting,
        LearnerClient(own) as client,
    ):
        with running(*learner(port, run, *options)) as first:
            wait_until(lambda: status_of(client).updates > 20, "the first learner to train")
            ended(first, signal.SIGKILL)
        with running(*learner(port, run, *options)):
            wait_until(lambda: status_of(client).updates > 20, "the second learner to train")
            wait_until(lambda: any(info.rollouts for info in client.actors()), "the actor to be back")
            (info,) = client.actors()
            assert (info.incarnation, info.via) == (1, (f"relay-{relay_port}",))
            assert client.status().rejected_rollouts == 0
            assert relaying.poll() is None
            assert acting.poll() is None


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--learner-address", ","), 2, "expected one address, or several different ones"),
        (("--relay-id", "a b"), 2, "relay_id"),
        (("--address", "0.0.0.0:0"), 2, "--insecure"),
        (("--address", "file:/tmp/address"), 2, "--address-file"),
        (("--connect-timeout-s", 0.5, "--learner-address", "127.0.0.1:1"), 1, "no learner at 127.0.0.1:1"),
    ],
)
def test_wrong_settings_and_missing_learners_end_a_relay_in_words(options, code: int, message: str, refused_here):
    assert message in refused_here("relay", "--address", "127.0.0.1:0", *options, code=code)[1]
