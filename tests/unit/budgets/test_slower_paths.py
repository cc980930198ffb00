"""A path that does more than it did is noticed: an addition to each hot path, and what it costs."""

import ast
import inspect
import textwrap
from typing import NamedTuple

import pytest

from rollcast.actor.vector.base import LockstepVectorEnv
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.batching.batcher import Batcher
from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.serving.publisher import PolicyPublisher
from rollcast.services.policies.subscribers import Subscribers
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.streams.receiver import RolloutReceiver
from tests.budgets.paths import SCENARIOS, UPDATES, Measured
from tests.budgets.table import totals


class Addition(NamedTuple):
    """A statement with which a method begins from now on.

    Attributes:
        scenario: A scenario that calls the method.
        work: Its work that grows.
        owner: The class.
        method: The method.
        statement: The statement.
        cost: The cost of the statement, by kind; it may have others.
    """

    scenario: str
    work: str
    owner: type
    method: str
    statement: str
    cost: dict[str, int]


A_COPY = {"C calls": 1, "arrays": 1, "bytes copied": 64}
ADDITIONS = {
    "sending: a column copied": Addition(
        "training", "actor: a rollout", RolloutEncoder, "encode", "rollout.reward.copy()", A_COPY
    ),
    "sending: another message": Addition(
        "training",
        "actor: a rollout",
        RolloutEncoder,
        "encode",
        "yield seal(rollout_pb2.StreamRolloutsRequest(activity=rollout_pb2.ActorActivity()).SerializeToString())",
        {"messages": 1, "bytes sent": 11},
    ),
    "receiving: a message copied": Addition(
        "training", "learner: a rollout", RolloutReceiver, "receive", "serialized.join((b'', b''))", {"C calls": 1}
    ),
    "queueing: a lock": Addition(
        "training", "learner: a rollout", RolloutQueue, "put", "self.size", {"Python calls": 1, "locks": 1}
    ),
    "queueing: the trainer woken for each rollout": Addition(
        "training",
        "learner: two rollouts, for which the trainer waits",
        RolloutQueue,
        "offer",
        "self._arrived.acquire(); self._arrived.notify(); self._arrived.release()",
        {"threads woken": 1},
    ),
    "acknowledging: actors woken that wait for a policy": Addition(
        "training",
        "learner: a rollout",
        Subscribers,
        "pause",
        "self._lock.acquire(); self._wake([*self._waiting]); self._lock.release()",
        {"threads woken": 2},
    ),
    "assembling: a column of each rollout copied": Addition(
        "training",
        "learner: a batch of two rollouts that have come",
        Batcher,
        "add",
        "piece.rollout.reward.copy()",
        {kind: 2 * n for kind, n in A_COPY.items()},
    ),
    "publishing: all arrays copied": Addition(
        "training",
        "learner: a policy for two actors that play",
        PolicyPublisher,
        "publish",
        "import numpy as np; np.concatenate([array.ravel() for array in state.values()])",
        {"arrays": 1},
    ),
    "publishing: a lock": Addition(
        "training",
        "learner: a policy for two actors that play",
        Subscribers,
        "offer",
        "self.sent_version('a')",
        {"Python calls": 1, "locks": 1, "C calls": 1},
    ),
    "stepping: rewards copied": Addition(
        "acting", "actor: a further environment step", LockstepVectorEnv, "step", "self._arrays.reward.copy()", A_COPY
    ),
    "inserting: a column copied": Addition(
        "replay, uniform", "learner: a rollout put into replay", ReplayBuffer, "insert", "rollout.reward.copy()", A_COPY
    ),
    "drawing: a lock": Addition(
        "replay, uniform",
        "learner: a batch drawn",
        ReplayBuffer,
        "sample",
        "self.size",
        {"Python calls": 1, "locks": 1},
    ),
    "updating impala: a tensor copied": Addition(
        "impala", "learner: an update", Impala, "update", "batch.reward.clone()", {"C calls": 1, "operations": 1}
    ),
    "updating dqn: a tensor copied": Addition(
        "dqn", "learner: an update", Dqn, "update", "batch.reward.clone()", {"C calls": 1, "operations": 1}
    ),
    "updating sac: a tensor copied": Addition(
        "sac", "learner: an update", Sac, "update", "batch.reward.clone()", {"C calls": 1, "operations": 1}
    ),
}


@pytest.mark.parametrize(
    "addition",
    [
        pytest.param(addition, id=name, marks=[pytest.mark.slow] * (addition.scenario in UPDATES))
        for name, addition in ADDITIONS.items()
    ],
)
def test_an_addition_to_a_hot_path_is_counted(addition: Addition, monkeypatch: pytest.MonkeyPatch):
    before = SCENARIOS[addition.scenario]()
    add(addition, monkeypatch)
    now = SCENARIOS[addition.scenario]()
    assert growth(before, now, addition.work).items() >= addition.cost.items()


def growth(before: Measured, now: Measured, work: str) -> dict[str, int]:
    old, new = totals(before[work]), totals(now[work])
    return {kind: n - old[kind] for kind, n in new.items() if n != old[kind]}


def add(addition: Addition, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles the method with the statement in it, as if the statement stood in its module."""
    function = inspect.unwrap(getattr(addition.owner, addition.method))
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.body[1:1] = ast.parse(addition.statement).body  # after the docstring
    made: dict[str, object] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), function.__globals__, made)
    monkeypatch.setattr(addition.owner, addition.method, made[addition.method])
