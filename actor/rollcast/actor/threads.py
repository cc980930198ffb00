"""Limits the threads of an actor's arithmetic."""

import os
import sys
from typing import Final

from threadpoolctl import threadpool_limits

from rollcast.actor.rounding import fix_rounding

# Libraries that are loaded later read these variables, such as torch (with the first policy) and OpenCV (with a game).
_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")


def limit_threads(n_threads: int) -> None:
    """Limits the linear algebra library, torch and OpenCV to `n_threads` threads, in this process and later children.

    Actors share a machine. With more than one thread for each actor, all actors become slower (small matrices, spinning
    waits). The function also calls `fix_rounding`, which makes sums reproducible.
    """
    fix_rounding()
    os.environ.update(dict.fromkeys(_VARIABLES, str(n_threads)))
    threadpool_limits(limits=n_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(n_threads)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(n_threads)
