"""The targets of rollouts: a learner with a queue, and a replay buffer that is served."""

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.queueing.destination import RolloutDestination
from rollcast.learner.replay.inserter import ReplayInserter
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.substeps import make_buffers
from rollcast.services.errors import NotReadyError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.chaos.bookkeeping import bookkeeping_spaces
from tests.chaos.ledger import Ledger, StepLedger
from tests.chaos.policies import digest_of

N_ROLLOUT_STEPS = 8
ENVS_PER_ACTOR = 2
# Flipped bits make names of their own, which stay joined: room for those, too.
_MAX_ACTORS = 256
_LOOK_S = 0.02
# A trainer is busy with an update now and then, and for longer now and then: the queue fills, and streams wait.
_BUSY_S = (0.0, 0.0, 0.02, 0.1, 0.8)
_BROADCAST_EVERY = 20
_BUFFER_ENTRIES = 20_000


class ChaosLearner(Protocol):
    """A learner that keeps a ledger; entered, it serves, and left, it has stopped."""

    ledger: Ledger

    def __enter__(self) -> Self:
        """Starts the learner's server."""

    def __exit__(self, *exc: object) -> None:
        """Stops; everything that was accepted is in the ledger afterwards."""

    @property
    def port(self) -> int:
        """Its TCP port, on 127.0.0.1."""


class _Served(ABC):
    """The base of all: actors that dial in, and a thread that does what a trainer does."""

    frame_stack = 1
    busy_s: Sequence[float] = _BUSY_S
    # room for so many rollouts in the queue: less than the actors of a chaos play
    queued_rollouts = 4

    def __init__(self, seed: int, **serving: Any) -> None:
        self.ledger = Ledger()
        self._rng = random.Random(seed)
        self._noise = np.random.default_rng(seed)
        # The digest of each version that was cast.
        self.cast: dict[int, str] = {}
        self.spaces = bookkeeping_spaces()
        self._policy = TorchPolicy(self.spaces, PolicySpec(hidden_sizes=(64,), frame_stack=self.frame_stack))
        self._policy.set_uniform_exploration(True)
        self.actors = RemoteDistributedActors(
            self._policy,
            N_ROLLOUT_STEPS,
            self.queued_rollouts * ENVS_PER_ACTOR,
            envs_per_actor=ENVS_PER_ACTOR,
            seed=seed,
            serving=ServingOptions(
                addresses=("127.0.0.1:0",), max_actors=_MAX_ACTORS, destination=self._make_destination(), **serving
            ),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._train, name="chaos-trainer", daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.actors.start()
        self.cast[self.actors.policy_version] = digest_of(self._policy.state_arrays())
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(30.0)
        self.actors.stop()
        self._take_all()

    @property
    def port(self) -> int:
        """Its TCP port, on 127.0.0.1."""
        return int(self.actors.addresses[0].rpartition(":")[2])

    def _train(self) -> None:
        broadcast_at = _BROADCAST_EVERY
        try:
            while not self._stop.wait(self._rng.choice(self.busy_s)):
                self._take_all()
                if self.ledger.n_rollouts >= broadcast_at:
                    broadcast_at = self.ledger.n_rollouts + _BROADCAST_EVERY
                    self._cast_other_weights()
        except BaseException as error:
            self.failure = error
            raise

    def _cast_other_weights(self) -> None:
        """Casts a policy that differs a little from the first; all of them act uniformly at random."""
        state = {}
        for name, array in self._policy.state_arrays().items():
            noise = self._noise.standard_normal(array.shape).astype(np.float32)
            state[name] = array * (1 + 1e-3 * noise) if array.dtype == np.float32 else array
        self.actors.broadcast_updated_policy(state)
        self.cast[self.actors.policy_version] = digest_of(state)

    def _make_destination(self) -> RolloutDestination | None:
        """Makes what rollouts go to instead of the queue; None for the queue."""
        return None

    @abstractmethod
    def _take_all(self) -> None:
        """Takes what has come."""


class QueueLearner(_Served):
    """Collects rollouts from the queue, as on-policy algorithms do.

    Args:
        seed: Of the environments, and of how busy it is.
        serving: More options of `ServingOptions`.
    """

    def _take_all(self) -> None:
        while (piece := self.actors.poll_slice(ENVS_PER_ACTOR)) is not None:
            self.ledger.enter(piece.rollout)

    def check_whole(self, acknowledged: Mapping[str, Mapping[int, int]], *, more_than: int) -> None:
        """Asserts that it has all that was acknowledged, once and in order, and refused nothing.

        Args:
            acknowledged: Of each actor; see `read_acknowledgements`.
            more_than: Each has sent more rollouts than this.
        """
        for name, sequences in acknowledged.items():
            assert sum(sequences.values()) > more_than
            self.ledger.check_acknowledged(name, sequences)
        assert self.ledger.entries.all() == []
        assert self.failure is None
        assert self.actors.rejected_rollouts == 0


class PromptLearner(QueueLearner):
    """The same without updates that take long: it takes all that its actors play."""

    busy_s = (0.02,)
    queued_rollouts = 64


class _Entering:
    """A `RolloutDestination` in front of another that enters what that has taken."""

    def __init__(self, destination: ReplayInserter, enter: Callable[[Rollout], None]) -> None:
        self._destination, self._enter = destination, enter
        self.reserve, self.release, self.close = destination.reserve, destination.release, destination.close

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], n_reserved: int = 0) -> bool:
        taken = self._destination.put(rollout, is_active=is_active, n_reserved=n_reserved)
        if taken:
            self._enter(rollout)
        return taken


class ReplayLearner(_Served):
    """A replay buffer as `rollcast replay serve` has it, which is read out in the order in which it was filled.

    Args:
        seed: Of the environments, and of how busy it is.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.steps = StepLedger(self.ledger.entries)

    def _make_destination(self) -> RolloutDestination:
        buffers = make_buffers(
            ReplaySettings(capacity=_BUFFER_ENTRIES, sampler="fifo", max_times_sampled=1),
            self.spaces,
            n_rollout_steps=N_ROLLOUT_STEPS,
            batch_size=1,
            frame_stack=self.frame_stack,
        )
        self._buffer = buffers[FLAT_SUBSTEP]
        return _Entering(ReplayInserter(buffers), self.ledger.enter)

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self.steps.check_complete(self.ledger.expected_steps(N_ROLLOUT_STEPS))

    def _take_all(self) -> None:
        while size := self._buffer.size:
            try:
                sample = self._buffer.sample(size)
            except NotReadyError:
                return
            columns = sample.substeps[FLAT_SUBSTEP]
            self.steps.enter(
                np.asarray(columns.observation[""])[0], np.asarray(columns.action)[0], np.asarray(sample.reward)[0]
            )


class FramesLearner(ReplayLearner):
    """The same for a policy that sees four frames at once: the buffer has each once, and its samples have stacks."""

    frame_stack = 4


LEARNERS = {"queue": QueueLearner, "replay": ReplayLearner, "frames": FramesLearner}
