"""Defines a policy for learner and actors: the architecture, and the arrays of one version.

The module imports neither numpy nor gymnasium, because the settings import names and bounds from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from rollcast.services.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollcast.services.spaces.spaces import EnvironmentSpaces

AUTO_NETWORK = "auto"
# Networks that need no import: an MLP for vectors, and for images the torso of this name. "auto": the Nature CNN for
# images; "mlp": no torso, because images are flattened to vectors.
IMAGE_NETWORKS: Final = ("nature_cnn", "impala_shallow", "impala_resnet")
BUILT_IN_NETWORKS: Final = (AUTO_NETWORK, "mlp", *IMAGE_NETWORKS)

Activation = Literal["tanh", "relu"]
# The policies that a run keeps: the newest, and the one with the highest mean return.
PolicyName = Literal["last", "best"]
# The encodings of policies, by the values of the option; see `encodings.ENCODINGS`.
PolicyEncodingName = Literal["full", "bfloat16", "delta"]
Recurrence = Literal["none", "lstm", "gru"]
PolicyHead = Literal["default", "squashed_gaussian", "q_values", "dueling_q_values"]

# Above this, clipping would have no effect: deviations in training are far lower.
MAX_OBSERVATION_CLIP: Final = 1e6

# A state_dict as numpy arrays, by torch's names of parameters and buffers.
PolicyState = Mapping[str, "NDArray[np.generic]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """The architecture of a policy.

    Attributes:
        network: One of `BUILT_IN_NETWORKS`, or `"package.module:factory"`.
        hidden_sizes: Sizes of the hidden layers of the MLP.
        activation: The MLP's activation.
        head: The meaning of the network's outputs: `"default"`, the parameters of the action space's own distribution;
            `"squashed_gaussian"`, means and log standard deviations before a tanh that squashes actions to the Box's
            bounds; `"q_values"`, the value of each Discrete action; `"dueling_q_values"`, the value of the observation
            and then the advantage of each Discrete action.
        recurrence: The recurrent layer between the hidden layers and the outputs: none, or a one-layer LSTM or GRU, as
            in torch.
        recurrent_size: H, the number of units of the recurrent layer.
        normalize_observations: Whether to normalise Box leaves of floats by their running mean and variance, which are
            part of the policy's arrays.
        observation_clip: The largest magnitude of a normalised number, above 0 and finite.
        frame_stack: K, the number of frames in the network's input, for every leaf except the action mask; see
            `rollcast.v1.PolicySpec`. Spaces and rollouts have single frames.
    """

    network: str = AUTO_NETWORK
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    head: PolicyHead = "default"
    recurrence: Recurrence = "none"
    recurrent_size: int = 64
    normalize_observations: bool = False
    observation_clip: float = 10.0
    frame_stack: int = 1

    def __post_init__(self) -> None:
        if not 0.0 < self.observation_clip <= MAX_OBSERVATION_CLIP:
            raise InvalidInputError(
                f"the policy has observation_clip {self.observation_clip}; expected a number above 0 and at most "
                f"{MAX_OBSERVATION_CLIP:g}; correct it"
            )
        if self.frame_stack < 1:
            raise InvalidInputError(
                f"the policy has a frame_stack of {self.frame_stack}; expected at least 1, which means single frames; "
                "correct it"
            )

    @property
    def state_size(self) -> int:
        """S, the size of the recurrent state: 2 H for an LSTM (output, then cell), H for a GRU, otherwise 0."""
        return {"none": 0, "lstm": 2, "gru": 1}[self.recurrence] * self.recurrent_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPolicy:
    """A policy from a run's policy file.

    Attributes:
        spec: The policy's architecture.
        state: The policy's arrays.
        policy_version: The policy's version in that run.
        env_steps: The run's environment steps when the policy was saved.
        mean_return: The mean return of the run's recent episodes when the policy was saved; None before the first
            episode has ended.
        spaces: The spaces that the policy acts in. None: the file is older than version 0.2, or the spaces are too
            large for the metadata.
    """

    spec: PolicySpec
    state: PolicyState
    policy_version: int
    env_steps: int
    mean_return: float | None
    spaces: "EnvironmentSpaces | None" = None


def saved_policy_path(run: Path, name: PolicyName) -> Path:
    """Returns the path of the last or the best policy in a run directory."""
    return run / f"policy_{name}.safetensors"
