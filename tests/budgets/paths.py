"""The hot paths whose work has a budget. Each is warm when it is counted: caches are filled, forms are known."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.connection.learner import LearnerConnection
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.replay.batches import SampleBatcher
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import Rollout
from tests.accelerator import Accelerator
from tests.budgets.stage import Stage
from tests.budgets.wire import grpc_on
from tests.buffers import make_buffer
from tests.environments import CountingEnv
from tests.every_algorithm import CASES
from tests.rollouts import CARTPOLE_LIKE, make_rollout
from tests.unit.learner.serving.intakes import offer

# Work by kind and site.
Counts: TypeAlias = Counter[tuple[str, str]]
# By whose work it is, and what was done: "learner: a rollout".
Measured: TypeAlias = dict[str, Counts]

_SPEC = PolicySpec(hidden_sizes=(8,))
_N_WARM = 3
_T, _B = 4, 4
_rollout = partial(make_rollout, n_steps=_T, n_envs=_B)
_ACTORS = ("a", "b")


def training() -> Measured:
    """A learner and two actors: rollouts of 4 steps and 4 trajectories, batches of 8 trajectories, small policies."""
    measured: Measured = {}
    with Stage() as stage, grpc_on(stage):
        policy = TorchPolicy(CARTPOLE_LIKE, _SPEC)
        serving = ServingOptions(addresses=("127.0.0.1:0",))
        learner = RemoteDistributedActors(policy, _T, 2 * _B, 2.0, envs_per_actor=_B, serving=serving)
        learner.start()
        outboxes = {name: _Outbox(stage, learner.addresses[0], name) for name in _ACTORS}
        stage.rest()

        @contextmanager
        def counted(what: str) -> Iterator[None]:
            with stage.work.counting():
                yield
                stage.rest()
            measured.update({f"{role}: {what}": counts for role, counts in stage.work.counts.items()})
            stage.work.counts.clear()

        def play(sequence: int, *names: str) -> None:
            for name in names:
                outboxes[name].send(_rollout(sequence, actor_id=name))

        def cast() -> None:
            learner.broadcast_updated_policy(policy.state_arrays())

        for sequence in range(1, 1 + _N_WARM):
            play(sequence, *_ACTORS)
            learner.collect_outputs("cpu")
            # Actors that play get versions now and then only.
            stage.pass_time(1.0)
            cast()
            stage.pass_time(1.0)
        with counted("a rollout"):
            play(4, "a")
        play(4, "b")
        stage.rest()
        with counted("a batch of two rollouts that have come"):
            learner.collect_outputs("cpu")
        stage.spawn(lambda: learner.collect_outputs("cpu"), role="learner")
        stage.rest()
        with counted("two rollouts, for which the trainer waits"):
            play(5, "a")
            stage.rest()
            play(5, "b")
        stage.pass_time(1.0)
        with counted("a policy for two actors that play"):
            cast()
        cast()
        stage.rest()
        with counted("a rollout whose answer brings a policy"):
            play(6, "a")
    return measured


class _Outbox:
    """An actor that sends the rollouts that it is given, as soon as it may."""

    def __init__(self, stage: Stage, address: str, name: str) -> None:
        self._stage = stage
        self._address = address
        self._name = name
        self._rollouts: deque[Rollout] = deque()
        stage.spawn(self._act, role="actor")

    def send(self, rollout: Rollout) -> None:
        self._rollouts.append(rollout)

    def _act(self) -> None:
        connection = LearnerConnection(self._address, offer(actor_id=self._name, n_envs=_B))
        connection.join()
        while True:
            self._stage.wait_until(lambda: bool(self._rollouts))
            rollout = self._rollouts.popleft()
            assert connection.wait_for_credit(rollout.sequence, 60.0)
            assert connection.take_policy() is not None
            connection.send(rollout)


def acting() -> Measured:
    """A worker with 16 environments, and a policy of numpy."""
    counts = {n_steps: _collecting(n_steps) for n_steps in (_T, _T + 1)}
    return {
        f"actor: {_T} environment steps, recorded": counts[_T],
        "actor: a further environment step": counts[_T + 1] - counts[_T],
    }


def _collecting(n_steps: int) -> Counts:
    with Stage("actor") as stage:
        vector_env = make_vector_env(partial(CountingEnv, n_steps=1000), 16)
        spaces = environment_spaces(vector_env)
        policy = make_policy(spaces, _SPEC, seed=0)
        policy.load(1, TorchPolicy(spaces, _SPEC).state_arrays())
        worker = RolloutWorker(vector_env, policy, n_steps, actor_id="a", incarnation=1, env_seed=0)
        for _ in range(_N_WARM):
            worker.collect()
        with stage.work.counting():
            worker.collect()
        worker.close()
    return stage.work.counts["actor"]


def replay(**settings: object) -> Measured:
    """A buffer, of transitions if its settings do not say otherwise; batches of 4 entries."""
    with Stage() as stage:
        buffer = make_buffer(CARTPOLE_LIKE, n_rollout_steps=_T, n_envs=_B, batch_size=4, **settings)
        ring, batcher = buffer.make_ring(4), SampleBatcher(make_copier("cpu"))
        drawn: list[NDArray[np.int64]] = []

        def insert() -> None:
            buffer.insert(_rollout(1))

        def draw() -> None:
            sample = buffer.sample(4, ring=ring)
            batcher.make(sample)
            drawn.append(sample.keys)

        def update_priorities() -> None:
            buffer.update_priorities(drawn.pop(), np.ones(4))

        tasks = {"a rollout put into replay": insert, "a batch drawn": draw, "new priorities": update_priorities}
        for _ in range(_N_WARM):
            for act in tasks.values():
                act()
        measured: Measured = {}
        for what, act in tasks.items():
            with stage.work.counting():
                act()
            measured[f"learner: {what}"] = stage.work.counts.pop("learner")
    return measured


def update(name: str) -> Measured:
    """An update of an algorithm on a device that is none: see `tests.accelerator`."""
    case = CASES[name]
    with Accelerator() as accelerator:
        algorithm, batches = case.make(accelerator.device), case.batches(accelerator.device)
        for progress in (0.1, 0.2):  # the first makes the optimisers' state
            case.update(algorithm, batches, progress=progress)
        with Stage() as stage, stage.work.counting(), accelerator.counting() as cost:
            case.update(algorithm, batches, progress=0.3)
    counts = stage.work.counts["learner"]
    counts.update({("operations", operation): n for operation, n in cost.operations.items()})
    return {"learner: an update": counts}


# By algorithm, the case of `tests.every_algorithm`.
UPDATES = {"impala": "impala", "ppo": "ppo", "appo": "appo", "dqn": "dqn", "r2d2": "r2d2", "sac": "sac: box"}
SCENARIOS: Mapping[str, Callable[[], Measured]] = {
    "training": training,
    "acting": acting,
    "replay, uniform": replay,
    "replay, prioritized": partial(replay, sampler="prioritized"),
    "replay, sequences": partial(replay, entry="rollouts", sequence_length=2),
    **{name: partial(update, case) for name, case in UPDATES.items()},
}
