"""Defines the questions and answers of central inference, and the server that answers."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollcast.services.errors import RollcastError
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation
from rollcast.services.wire.tensors import wire_array


@dataclass(frozen=True, slots=True)
class InferenceNetwork:
    """The policy that an actor acts with.

    Attributes:
        spaces: The spaces by substep key, as the learner orders them.
        spec: The architecture.
    """

    spaces: EnvironmentSpaces
    spec: PolicySpec


class Question(NamedTuple):
    """Observations for which parameters are wanted.

    Attributes:
        policy_version: The version that the actor has.
        weights_digest: The `weights_digest` of that version.
        substep_key: The substep.
        observation: `[N, ...]` for every leaf, in the order of the space; with a frame stack `[N, K, ...]`.
        state: float32 `[N, S]` of a recurrent policy, else None.
    """

    policy_version: int
    weights_digest: bytes
    substep_key: str
    observation: Observation
    state: NDArray[np.float32] | None

    @property
    def n(self) -> int:
        """N."""
        return len(next(iter(self.observation.values())))


class Inferred(NamedTuple):
    """An answer.

    Attributes:
        policy_version: The version that was computed, or that the server has.
        parameters: float32 `[N, P]` of the distributions of actions; None: the server has no policy that may stand
            for the actor's.
        state: float32 `[N, S]` after the observations; None: the policy is not recurrent.
    """

    policy_version: int
    parameters: NDArray[np.float32] | None = None
    state: NDArray[np.float32] | None = None


# Takes the answer, or the error that ends the stream; called from any thread. None answers the opening of a stream.
TakeAnswer: TypeAlias = Callable[[Inferred | RollcastError | None], None]


class InferenceSource(Protocol):
    """The computer of answers. Any thread may call."""

    def stream(
        self, network: InferenceNetwork, digest: bytes
    ) -> AbstractContextManager[Callable[[Question | None, TakeAnswer], None]]:
        """Keeps a network while a stream is open; streams with the same digest share one.

        Args:
            network: The network.
            digest: The digest of its message.

        Returns:
            The function that asks. None as the question: whether the network can be computed.

        Raises:
            ThrottledError: There are too many networks.
        """


def weights_digest(state: PolicyState) -> bytes:
    """Returns the digest of a policy's arrays, as inference.proto defines it."""
    digest = xxhash.xxh3_128()
    for name, array in sorted(state.items()):
        digest.update(name.encode())
        digest.update(wire_array(array, what=name).tobytes())
    return digest.digest()
