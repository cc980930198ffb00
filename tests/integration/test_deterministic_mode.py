"""The same seed gives the same policy: in this process, in others, and over TCP, whichever process is faster."""

import contextlib
import functools
import hashlib
import io
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.numpy
from rich.console import Console

from rollcast.actor.acting.process import run_actor
from rollcast.actor.settings import ActorSettings
from rollcast.learner.commands.learner import learner
from rollcast.learner.commands.train import train
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.errors import ConfigurationError
from tests.chaos.proxy import Proxy
from tests.processes import completed, free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("threads_as_before")]

# Two actors each; 50 updates and more. Which algorithm learns makes no difference for the order in which rollouts come:
# the cases differ in what rollouts bring, and in how they enter. PPO and APPO: 2 * 4 * 8 steps make a batch. DQN and
# SAC: 96 entries are in the buffer before the first, then 4 updates a round of 2 * 4 * 4 steps. SAC's rollouts enter in
# pieces of 16 trajectories.
OPTIONS = {
    "ppo": (
        "--env-id CartPole-v1 --envs-per-actor 4 --batch-size 8 --n-rollout-steps 8 --total-steps 3200 "
        "--ppo.n-epochs 1 --ppo.minibatch-steps 32 --ppo.normalize-rewards"
    ),
    "appo": (
        "--env-id CartPole-v1 --envs-per-actor 4 --batch-size 8 --n-rollout-steps 8 --total-steps 3200 "
        "--appo.n-epochs 2 --appo.minibatch-steps 64 "
        # All that a rollout may bring, and moments that change with every update.
        "--recurrence gru --recurrent-size 8 --frame-stack 2 --normalize-observations"
    ),
    # The rollout after an episode's end is its reset row alone, in a batch beside others and in one of its own.
    "impala of one step": (
        "--env-id CartPole-v1 --envs-per-actor 4 --batch-size 8 --n-rollout-steps 1 --total-steps 400 "
        "--normalize-observations --impala.normalize-rewards"
    ),
    "appo of one step": (
        "--env-id CartPole-v1 --envs-per-actor 1 --batch-size 2 --n-rollout-steps 1 --total-steps 100 "
        "--appo.minibatch-steps 2 --appo.n-epochs 1 --recurrence gru --recurrent-size 8 --frame-stack 2"
    ),
    "dqn": (
        "--env-id CartPole-v1 --envs-per-actor 4 --batch-size 16 --n-rollout-steps 4 --total-steps 544 "
        "--replay.capacity 500 --replay.min-size 96 --replay.samples-per-insert 2 "
        "--frame-stack 3 --normalize-observations --replay.n-step 3"
    ),
    # 12 sequences, then 4 updates a round of 8 sequences of 4 steps.
    "r2d2": (
        "--env-id CartPole-v1 --envs-per-actor 4 --batch-size 4 --n-rollout-steps 4 --total-steps 544 "
        "--hidden-sizes 8 --recurrent-size 4 --replay.sequence-length 3 --replay.burn-in 1 --replay.capacity 100 "
        "--replay.min-size 12 --replay.samples-per-insert 2"
    ),
    "sac": (
        "--env-id Pendulum-v1 --envs-per-actor 20 --batch-size 32 --n-rollout-steps 2 --total-steps 1000 "
        "--hidden-sizes 8 --replay.capacity 500 --replay.min-size 96 --replay.samples-per-insert 2 "
        # Each update draws the critics of its target.
        "--sac.n-critics 3 --sac.critic-layer-norm --sac.policy-update-interval 2"
    ),
}
N_UPDATES = 50


def options_for(algorithm: str, run: Path, *more: object) -> list[str]:
    name = algorithm.split(maxsplit=1)[0]
    common = ("--deterministic", "--seed", 5, "--algorithm", name, "--stop-return", 1e9, "--run-dir", run)
    return [*map(str, common), *OPTIONS[algorithm].split(), *map(str, more)]


def digest_of(run: Path) -> str:
    arrays = safetensors.numpy.load_file(run / "policy_last.safetensors")
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + arrays[name].tobytes())
    return digest.hexdigest()


def check_updates(printed: str) -> None:
    assert int(re.search(r"^updates +(\d+)", printed, re.MULTILINE)[1]) >= N_UPDATES


def trained(algorithm: str, run: Path, *more: object) -> str:
    """Trains in this process, with actors in it or in others, and returns the policy's digest."""
    printed = io.StringIO()
    options = options_for(algorithm, run, "--n-actors", 2, *more)
    assert train(TrainSettings.from_command_line("rollcast train", options), Console(file=printed)) == 0
    if not {"--no-deterministic", "--total-steps"} & set(more):  # without the mode, it is up to who is faster
        check_updates(printed.getvalue())
    return digest_of(run)


def trained_remotely(algorithm: str, run: Path) -> str:
    """Trains with actors that a network delays, now this one and now that one, and cuts off now and then."""
    port, printed, over = free_port(), io.StringIO(), threading.Event()
    with contextlib.ExitStack() as stack:
        proxies = [Proxy(port, seed=0) for _ in range(2)]
        for proxy in proxies:
            stack.callback(proxy.close)
        threads = [
            threading.Thread(target=act, args=(algorithm, proxy.address, f"remote-{i}", over), name=f"test-actor-{i}")
            for i, proxy in enumerate(proxies)
        ]
        threads.append(threading.Thread(target=disturb, args=(proxies, random.Random(0), over)))
        for thread in threads:
            thread.start()
            stack.callback(thread.join, 20.0)
        stack.callback(over.set)
        options = options_for(algorithm, run, "--address", f"localhost:{port}", "--max-actors", 2)
        assert learner(ServingSettings.from_command_line("rollcast learner", options), Console(file=printed)) == 0
    check_updates(printed.getvalue())
    return digest_of(run)


def act(algorithm: str, address: str, name: str, over: threading.Event) -> None:
    env_id = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    settings = ActorSettings(learner_address=address, env_id=env_id, actor_id=name)
    # who was cut off just before the end has not heard of it
    run_actor(settings, over)


def disturb(proxies: list[Proxy], rng: random.Random, over: threading.Event) -> None:
    n_cuts = 0
    while not over.wait(0.05):
        for proxy in proxies:
            proxy.heal()
        victim = rng.choice(proxies)
        victim.inject("delay", 0.01, 0.0)
        if n_cuts < 3 and rng.random() < 0.1:
            n_cuts += victim.inject("cut", 0.0, 0.0)


@pytest.fixture(scope="module")
def in_one_thread(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The digests of runs whose actors play in the learner's thread; each is trained once."""
    folder = tmp_path_factory.mktemp("sequential")
    return functools.cache(lambda algorithm: trained(algorithm, folder / algorithm, "--actor-kind", "sequential"))


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_three_kinds_of_actors_give_the_same_bits(algorithm: str, in_one_thread: Callable[[str], str], tmp_path: Path):
    digests = {
        "sequential": in_one_thread(algorithm),
        "subprocess": trained(algorithm, tmp_path / "subprocess"),
        # what the network disturbs, and when, is another each time
        "remote": trained_remotely(algorithm, tmp_path / "remote"),
    }
    assert len(set(digests.values())) == 1, digests


def test_separate_processes_give_the_same_bits(in_one_thread: Callable[[str], str], tmp_path: Path):
    """Both actors are behind a relay."""
    address, relay_address = (f"localhost:{free_port()}" for _ in range(2))
    acting = ("actor", "--env-id", "CartPole-v1", "--learner-address")
    with (
        running("learner", "relay", "--address", relay_address, "--learner-address", address),
        running(*acting, relay_address, "--actor-id", "one"),
        running(*acting, relay_address, "--actor-id", "two"),
    ):
        completed("learner", *options_for("dqn", tmp_path / "apart", "--address", address, "--max-actors", 2))
    assert digest_of(tmp_path / "apart") == in_one_thread("dqn")


@pytest.mark.parametrize("algorithm", ["impala of one step", "dqn"])
def test_another_seed_gives_another_policy(algorithm: str, tmp_path: Path):
    here = ("--actor-kind", "sequential", "--total-steps", 200)
    assert trained(algorithm, tmp_path / "five", *here) != trained(algorithm, tmp_path / "six", *here, "--seed", 6)


@pytest.mark.parametrize("algorithm", ["appo", "dqn"])
def test_runs_without_the_mode_differ(algorithm: str, in_one_thread: Callable[[str], str], tmp_path: Path):
    """The bound of the tests above is one that only the mode holds: actors that play ahead give other policies."""
    assert trained(algorithm, tmp_path / "free", "--no-deterministic") != in_one_thread(algorithm)


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("impala of one step", ("--updates-per-broadcast", 2), "--updates-per-broadcast 2; expected 1"),
        ("impala of one step", ("--batch-size", 9), "batch_size is 9, and an actor collects 4 trajectories at once"),
    ],
)
def test_rejects_settings_that_cannot_be_deterministic(algorithm, options, message, tmp_path: Path):
    settings = TrainSettings.from_command_line("rollcast train", options_for(algorithm, tmp_path / "run", *options))
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        train(settings, Console(file=io.StringIO()))
