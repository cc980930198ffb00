"""Defines the questions and answers of central inference, and the interface of its server."""

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
    """The spaces and the architecture of an actor's policy.

    Attributes:
        spaces: The spaces by substep key, in the learner's order.
        spec: The architecture.
    """

    spaces: EnvironmentSpaces
    spec: PolicySpec


class Question(NamedTuple):
    """Observations for which an actor needs the parameters of its action distributions.

    Attributes:
        policy_version: The version of the actor's policy.
        weights_digest: The `weights_digest` of that version.
        substep_key: The substep.
        observation: `[N, ...]` for every leaf, in the order of the space; with a frame stack `[N, K, ...]`.
        state: float32 `[N, S]` of a recurrent policy, otherwise None.
    """

    policy_version: int
    weights_digest: bytes
    substep_key: str
    observation: Observation
    state: NDArray[np.float32] | None

    @property
    def n(self) -> int:
        """N, the number of observations."""
        return len(next(iter(self.observation.values())))


class Inferred(NamedTuple):
    """An answer to a question.

    Attributes:
        policy_version: The version that computed the parameters; without parameters, the server's version.
        parameters: float32 `[N, P]`, the parameters of the action distributions; None: the server has no suitable
            policy.
        state: float32 `[N, S]`, the recurrent state after the observations; None: the policy is not recurrent.
    """

    policy_version: int
    parameters: NDArray[np.float32] | None = None
    state: NDArray[np.float32] | None = None


# Takes the answer, or the error that ends the stream. Any thread may call it. None answers the opening of a stream.
TakeAnswer: TypeAlias = Callable[[Inferred | RollcastError | None], None]


class InferenceSource(Protocol):
    """Computes the answers of central inference. Safe from any thread."""

    def stream(
        self, network: InferenceNetwork, digest: bytes
    ) -> AbstractContextManager[Callable[[Question | None, TakeAnswer], None]]:
        """Keeps a network while a stream is open. Streams whose networks have the same digest share one network.

        Args:
            network: The network.
            digest: The digest of the network's message.

        Returns:
            The function that takes a question. A question of None asks whether the server can compute the network.

        Raises:
            ThrottledError: The server already has its largest number of networks.
        """


def weights_digest(state: PolicyState) -> bytes:
    """Returns the digest of a policy's arrays, as defined in inference.proto."""
    digest = xxhash.xxh3_128()
    for name, array in sorted(state.items()):
        digest.update(name.encode())
        digest.update(wire_array(array, what=name).tobytes())
    return digest.digest()
