import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.serving.publisher import PolicyPublisher
from rollcast.services.errors import InvalidInputError, InvalidTensorError, NotReadyError, RollcastError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.processes import DEADLINE_S
from tests.rollouts import CARTPOLE_LIKE

SPEC = PolicySpec(hidden_sizes=(4,))


@pytest.fixture
def make_publisher():
    """Makes publishers, and closes them at the end."""
    with ExitStack() as stack:

        def make(**options):
            publisher = PolicyPublisher(CARTPOLE_LIKE, SPEC, seed=0, **options)
            stack.callback(publisher.close)
            return publisher

        yield make


@pytest.fixture
def publisher(make_publisher):
    return make_publisher()


class LateState(Mapping):
    """The arrays of a policy that are on their way from a device until `arrive`; or never arrive, with an error."""

    def __init__(self, arrays, error=None):
        self._arrays, self._error = arrays, error
        self._arrived = threading.Event()
        self.asked = threading.Event()

    def arrive(self):
        self._arrived.set()

    def _there(self):
        self.asked.set()
        assert self._arrived.wait(DEADLINE_S), "nobody let them arrive"
        if self._error is not None:
            raise self._error
        return self._arrays

    def __getitem__(self, name):
        return self._there()[name]

    def __iter__(self):
        return iter(self._there())

    def __len__(self):
        return len(self._there())


def test_trainer_goes_on_while_a_version_is_encoded_and_those_between_are_left_out(publisher):
    late = LateState({"w": np.zeros(1, np.float32)})
    assert publisher.publish(late) == 1
    assert late.asked.wait(DEADLINE_S)
    for number in (2, 3, 4):
        assert publisher.publish({"w": np.full(1, number, np.float32)}) == number
    assert publisher.version == 4
    with publisher.subscription(after_version=0) as wait:
        assert wait(0.0) is None, "nothing is encoded yet"
        late.arrive()
        assert wait(DEADLINE_S).version in (1, 4)
        publisher.settle()
    encoded, state = publisher.newest_with_state()
    assert encoded.version == 4
    assert state["w"] == 4
    assert publisher.newest() is encoded


def test_every_version_is_encoded_where_each_counts(make_publisher):
    publisher = make_publisher(every_version=True)
    received = []
    with publisher.subscription(after_version=0) as wait, ThreadPoolExecutor(1) as trainer:
        late = LateState({"w": np.zeros(1, np.float32)})
        assert publisher.publish(late) == 1
        second = trainer.submit(publisher.publish, {"w": np.ones(1, np.float32)})
        assert late.asked.wait(DEADLINE_S)
        assert not second.done()
        assert publisher.version == 1
        late.arrive()
        assert second.result(DEADLINE_S) == 2
        publisher.end()
        while (encoded := wait(0.0)) is not None:
            received.append(encoded.version)
    assert received == [2], "a subscriber gets the newest"


def test_readers_wait_for_the_version_that_was_handed_over_before_they_asked(publisher):
    policy = TorchPolicy(CARTPOLE_LIKE, SPEC)
    publisher.publish(policy.state_arrays())
    late = LateState(policy.state_arrays())
    publisher.publish(late)
    observation = {"": np.zeros((1, 4), np.float32)}
    with ThreadPoolExecutor(3) as readers:
        waiting = [
            readers.submit(publisher.act, observation, substep_key=FLAT_SUBSTEP, deterministic=True),
            readers.submit(publisher.newest),
            readers.submit(publisher.newest_with_state),
        ]
        assert late.asked.wait(DEADLINE_S)
        assert not any(reader.done() for reader in waiting)
        late.arrive()
        acted, newest, (encoded, _) = (reader.result(DEADLINE_S) for reader in waiting)
    assert (acted[1], newest.version, encoded.version) == (2, 2, 2)


def test_error_of_the_encoder_reaches_the_trainer_and_nothing_is_cast_any_more(publisher):
    publisher.publish({"w": np.zeros(1, np.float32)})
    publisher.settle()
    diverged = LateState({}, error=RollcastError("training diverged"))
    diverged.arrive()
    publisher.publish(diverged)
    for ask in (publisher.settle, publisher.check, publisher.newest_with_state):
        with pytest.raises(RollcastError, match="training diverged"):
            ask()
    with pytest.raises(RollcastError, match="training diverged"):
        publisher.publish({"w": np.ones(1, np.float32)})
    assert publisher.newest().version == 1, "clients are served the last one that was whole"
    publisher.end()
    with publisher.subscription(after_version=0) as wait:
        assert wait(0.0).version == 1


def test_array_that_cannot_be_sent_is_an_error_for_the_trainer(publisher):
    publisher.publish({"w": np.zeros(1, np.complex128)})
    with pytest.raises(InvalidTensorError, match="w has dtype complex128"):
        publisher.settle()
    with pytest.raises(NotReadyError, match="no policy yet"):
        publisher.newest()


def test_the_end_casts_what_was_handed_over_and_wakes_those_who_wait(publisher):
    with publisher.subscription(after_version=0) as wait, ThreadPoolExecutor(1) as thread:
        for _ in range(5):
            publisher.publish({"w": np.zeros(1, np.float32)})
        publisher.end()
        assert publisher.ended
        assert thread.submit(wait, 60.0).result(DEADLINE_S).version == 5
        assert thread.submit(wait, 60.0).result(DEADLINE_S) is None
    publisher.end()
    assert publisher.newest().version == 5


def test_act_uses_the_newest_version(make_publisher):
    publisher, policy = make_publisher(), TorchPolicy(CARTPOLE_LIKE, SPEC)
    observation = {"": np.zeros((3, 4), np.float32)}
    with pytest.raises(NotReadyError, match="no policy yet"):
        publisher.act(observation, substep_key=FLAT_SUBSTEP, deterministic=True)
    for bias, best in (((5.0, 0.0), 0), ((0.0, 5.0), 1)):
        state = {name: np.zeros_like(array) for name, array in policy.state_arrays().items()}
        state[max(name for name in state if name.endswith("bias"))] = np.array(bias, np.float32)
        version = publisher.publish(state)
        action, acted = publisher.act(observation, substep_key=FLAT_SUBSTEP, deterministic=True)
        assert action.tolist() == [best] * 3
        assert acted == version
    with pytest.raises(InvalidInputError, match="substep_key 'x' does not exist"):
        publisher.act(observation, substep_key="x", deterministic=True)
