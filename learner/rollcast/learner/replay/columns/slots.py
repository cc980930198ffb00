"""Numbers of slots."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# int64 `[N]`, each in [0, n_slots) of its store.
Slots: TypeAlias = NDArray[np.int64]
