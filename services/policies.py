"""What both sides must know of a policy: its architecture and the arrays of one version."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

AUTO_NETWORK = "auto"

Activation = Literal["tanh", "relu"]

# A state_dict as numpy arrays, by the names torch gives its parameters and buffers.
PolicyState = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """The architecture of a policy.

    Attributes:
        network: `"auto"` (an MLP for vectors, the Nature CNN for images, chosen from the space) or
            `"package.module:factory"`.
        hidden_sizes: Sizes of the hidden layers of the MLP.
        activation: The MLP's activation.
    """

    network: str = AUTO_NETWORK
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
