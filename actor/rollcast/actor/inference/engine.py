"""Computes the policy for other actors, in a separate thread. Simultaneous questions share a forward pass."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.inference.followed_policies import FollowedPolicies, FollowedPolicy
from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.services.errors import (
    ConfigurationError,
    InvalidSpaceError,
    NotReadyError,
    ProtocolMismatchError,
    RollcastError,
    ThrottledError,
)
from rollcast.services.inference.inference import InferenceNetwork, Inferred, Question, TakeAnswer
from rollcast.services.policies.policies import AUTO_NETWORK, PolicyState
from rollcast.services.spaces.leaf_schema import leaf_schema
from rollcast.services.spaces.spaces import Observation, space_leaves

logger = logging.getLogger(__name__)

# The largest number of networks with their weights: one, and another while a new run replaces the old one.
_MAX_NETWORKS: Final = 4
# The largest number of remembered networks that do not fit. The engine refuses them without building them again.
_MAX_REFUSED: Final = 256

# The dtype and shape of each array of a policy, by name.
_Kinds: TypeAlias = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]


class _Network:
    """A network that streams share. Only the engine's thread uses the policy.

    Attributes:
        network: Its spaces and architecture.
        digest: The digest of its message.
        n_streams: The streams that share it; guarded by the engine's lock.
        policy: The policy; None before it is made.
        loaded: The weights that it has loaded.
    """

    def __init__(self, network: InferenceNetwork, digest: bytes) -> None:
        self.network = network
        self.digest = digest
        self.n_streams = 0
        self.policy: Policy | None = None
        self.loaded: FollowedPolicy | None = None


class _Waiting(NamedTuple):
    """A waiting question; None: the opening of a stream."""

    network: _Network
    question: Question | None
    take: TakeAnswer


class InferenceEngine:
    """An `InferenceSource` that computes the newest policy of a learner. Thread-safe.

    The engine follows the learner's policies from the first stream on.

    Args:
        policies: The learner's policies; closed with the engine.
        allowed_network: The policy network with which this process was started. The engine imports no other network.
        device: The device on which torch computes; None: see `make_policy`.

    Attributes:
        n_batches: The number of forward passes so far.
    """

    def __init__(
        self,
        policies: FollowedPolicies,
        *,
        allowed_network: str = AUTO_NETWORK,
        device: str | None = None,
    ) -> None:
        self.n_batches = 0
        self._allowed_network = allowed_network
        self._device = device
        self._changed = threading.Condition()  # guards all below
        self._networks: dict[bytes, _Network] = {}
        self._waiting: list[_Waiting] = []
        self._newest: FollowedPolicy | None = None
        self._is_closed = False
        # Used by the engine's thread: the reasons why networks do not fit the learner's policies, and the kinds of
        # their arrays.
        self._refused: dict[bytes, tuple[type[RollcastError], str]] = {}
        self._refused_by: _Kinds = {}
        self._policies = policies
        self._thread = threading.Thread(target=self._run, name="rollcast-inference", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads; open streams end with an error. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._policies.close()
        self._thread.join()

    @contextlib.contextmanager
    def stream(
        self, network: InferenceNetwork, digest: bytes
    ) -> Iterator[Callable[[Question | None, TakeAnswer], None]]:
        """Keeps a network while a stream is open; see `InferenceSource.stream`.

        Raises:
            ThrottledError: There are too many networks.
        """
        with self._changed:
            if digest not in self._networks and len(self._networks) >= _MAX_NETWORKS:
                raise ThrottledError(
                    f"actors with {_MAX_NETWORKS} other networks are connected; expected at most {_MAX_NETWORKS} "
                    "networks; use a separate server of central inference for each run"
                )
            self._policies.follow(self._take)
            kept = self._networks.setdefault(digest, _Network(network, digest))
            kept.n_streams += 1
        try:
            yield partial(self._ask, kept)
        finally:
            with self._changed:
                kept.n_streams -= 1
                if not kept.n_streams:
                    del self._networks[digest]

    def _ask(self, network: _Network, question: Question | None, take: TakeAnswer) -> None:
        with self._changed:
            if not self._is_closed:
                self._waiting.append(_Waiting(network, question, take))
                self._changed.notify_all()
                return
        take(_stopping())

    def _take(self, policy: FollowedPolicy) -> None:
        with self._changed:
            self._newest = policy
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                # before there is a policy, only openings wait
                self._changed.wait_for(lambda: (self._waiting and self._newest) or self._is_closed)
                waiting, self._waiting, newest, is_closed = self._waiting, [], self._newest, self._is_closed
            if is_closed or newest is None:
                for one in waiting:
                    one.take(_stopping())
                return
            groups: dict[tuple[_Network, str], list[_Waiting]] = {}
            for one in waiting:
                key = "" if one.question is None else one.question.substep_key
                groups.setdefault((one.network, key), []).append(one)
            for (network, _), group in groups.items():
                self._answer(network, group, newest)

    def _answer(self, network: _Network, group: list[_Waiting], newest: FollowedPolicy) -> None:
        """Answers questions of one substep, or openings of streams."""
        try:
            policy = self._loaded(network, newest)
            questions = []
            for one in group:
                if one.question is None:
                    one.take(None)
                elif (unfit := _unfit(one.question, newest)) is not None:
                    one.take(unfit)
                else:
                    questions.append((one.question, one.take))
            if questions:
                answers = _computed(policy, [question for question, _ in questions])
                self.n_batches += 1
                for (_, take), answer in zip(questions, answers, strict=True):
                    take(answer)
        except RollcastError as error:
            for one in group:
                one.take(error)
        except Exception as error:
            logger.exception("central inference failed")
            failure = RollcastError(f"central inference failed: {type(error).__name__}: {error}; see its server's log")
            for one in group:
                one.take(failure)

    def _loaded(self, network: _Network, newest: FollowedPolicy) -> Policy:
        """Returns a network's policy with the newest weights. Remembers a network that does not fit, to refuse it."""
        if network.loaded is newest and network.policy is not None:
            return network.policy
        if (kinds := _kinds(newest.state)) != self._refused_by:  # another run, which others may fit
            self._refused, self._refused_by = {}, kinds
        if (refusal := self._refused.get(network.digest)) is not None:
            kind, message = refusal
            raise kind(message)
        try:
            return self._load(network, newest)
        except (ProtocolMismatchError, ConfigurationError, InvalidSpaceError) as error:
            if len(self._refused) == _MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._refused[network.digest] = type(error), str(error)
            raise

    def _load(self, network: _Network, newest: FollowedPolicy) -> Policy:
        policy, known = network.policy, network.network
        if policy is None:
            policy = make_policy(
                known.spaces, known.spec, seed=0, allowed_network=self._allowed_network, device=self._device
            )
        policy.load(newest.version, newest.state)
        if network.policy is None:
            for key in known.spaces:  # the first pass takes seconds on a GPU
                policy.parameters_of(_any_observation(known, key), key, policy.initial_state(1))
        network.policy, network.loaded = policy, newest
        return policy


def _kinds(state: PolicyState) -> _Kinds:
    """Returns the dtypes and shapes that a network has to fit."""
    return {name: (array.dtype, array.shape) for name, array in state.items()}


def _unfit(question: Question, newest: FollowedPolicy) -> Inferred | RollcastError | None:
    """Returns the answer to a question that the newest policy must not answer; None if it may."""
    known = newest.digests.get(question.policy_version)
    if known is None or question.policy_version > newest.version:
        return Inferred(newest.version)
    if known != question.weights_digest:
        return ProtocolMismatchError(
            f"version {question.policy_version} of the actor's policy differs from this version at central inference; "
            "expected the same weights; give both the address of the same learner"
        )
    return None


def _computed(policy: Policy, questions: Sequence[Question]) -> list[Inferred]:
    """Computes questions of one substep in one forward pass."""
    first = questions[0]
    observation = {
        path: np.concatenate([question.observation[path] for question in questions]) for path in first.observation
    }
    states = [question.state for question in questions if question.state is not None]
    state = np.concatenate(states) if states else None
    parameters = policy.parameters_of(observation, first.substep_key, state)
    cuts = np.cumsum([question.n for question in questions])[:-1]
    # copied: the policy's next pass may write into them
    of_each = np.split(parameters.copy(), cuts)
    after: Sequence[NDArray[np.float32] | None] = [None] * len(questions) if state is None else np.split(state, cuts)
    return [Inferred(policy.version, *pair) for pair in zip(of_each, after, strict=True)]


def _any_observation(network: InferenceNetwork, key: str) -> Observation:
    """Returns a random observation of one trajectory, in the policy's shapes."""
    frames, found = network.spec.frame_stack, {}
    for path, leaf in space_leaves(network.spaces[key].observation).items():
        schema = leaf_schema(leaf)
        stack = (frames,) if frames > 1 and path != ACTION_MASK else ()
        found[path] = np.broadcast_to(np.asarray(leaf.sample(), schema.dtype), (1, *stack, *schema.shape)).copy()
    return found


def _stopping() -> NotReadyError:
    return NotReadyError("central inference stops; expected a running server; try again with backoff")
