"""Defines what both sides know of a policy: its architecture and the arrays of one version.

Imports neither numpy nor gymnasium, because settings take names and bounds from here.
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
# Networks that need no import: an MLP for vectors and, for images, the torso that the name says. "auto": the Nature CNN
# for images; "mlp": none, images are vectors, too.
IMAGE_NETWORKS: Final = ("nature_cnn", "impala_shallow", "impala_resnet")
BUILT_IN_NETWORKS: Final = (AUTO_NETWORK, "mlp", *IMAGE_NETWORKS)

Activation = Literal["tanh", "relu"]
# The policies that a run keeps: the newest, and the one with the highest mean return.
PolicyName = Literal["last", "best"]
# The forms in which policies come, by the names that people choose from; see `encodings.ENCODINGS`.
PolicyEncodingName = Literal["full", "bfloat16", "delta"]
Recurrence = Literal["none", "lstm", "gru"]
PolicyHead = Literal["default", "squashed_gaussian", "q_values", "dueling_q_values"]

# Beyond it, normalising would bound nothing: deviations of trained observations are far below.
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
            `"squashed_gaussian"`, means and log standard deviations before a tanh that fits the Box's bounds;
            `"q_values"`, the value of each Discrete action; `"dueling_q_values"`, the value of the observation and then
            the advantage of each Discrete action.
        recurrence: The recurrent layer between the hidden layers and the outputs: none, or an LSTM or a GRU of one
            layer, as torch computes them.
        recurrent_size: H, the units of the recurrent layer.
        normalize_observations: Whether Box leaves of floats are normalised by their running mean and variance, which
            are part of the policy's arrays.
        observation_clip: Bound of normalised numbers, above 0 and finite.
        frame_stack: K, the last frames that the network sees at once, of every leaf but the action mask; see
            `rollcast.v1.PolicySpec`. The spaces, and rollouts, are those of single frames.
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
                f"the policy has a frame_stack of {self.frame_stack}; expected at least 1, that is single frames; "
                "correct it"
            )

    @property
    def state_size(self) -> int:
        """S, the size of a trajectory's recurrent state: an LSTM's output, then its cell; a GRU's output; 0: none."""
        return {"none": 0, "lstm": 2, "gru": 1}[self.recurrence] * self.recurrent_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPolicy:
    """A policy as a run keeps it in a file.

    Attributes:
        spec: Its architecture.
        state: Its arrays.
        policy_version: Its version in that run.
        env_steps: Environment steps that the run had made.
        mean_return: Mean return of the run's recent episodes at that time; None before the first had ended.
        spaces: The spaces that it acts in. None: the file is older than version 0.2, or the spaces are too large for
            its metadata.
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
