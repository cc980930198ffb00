"""Chooses the number of torch threads in a learner."""

from typing import Final

# A policy of as many weights computes with several threads of torch. On two cores, forward and backward passes begin to
# gain from a second thread at 10 million multiply-adds: 2.1 ms became 1.4 ms with 12 million, 1.0 ms became 1.2 ms with
# 5 million. This many weights and the 64 steps of the smallest minibatches are 32 million. Where another process wants
# the cores, threads wait for each other: passes of all sizes then took 2 to 16 times as long with two as with one.
_LARGE_WEIGHTS: Final = 500_000


def choose_torch_threads(
    n_threads: int, n_weights: int, *, n_cores: int, n_local_actors: int, n_local_ranks: int, of_openmp: str | None
) -> tuple[int, str]:
    """Chooses the number of torch threads: one, unless a setting asks for more, or the network is large.

    Args:
        n_threads: The value of --torch-threads; 0: not set.
        n_weights: The number of weights in the policy.
        n_cores: The number of cores that this process may use; see `usable_cores`.
        n_local_actors: The number of actor processes on these cores.
        n_local_ranks: The number of learners on these cores.
        of_openmp: The environment variable OMP_NUM_THREADS; None: not set.

    Returns:
        The number, and the reason as a sentence.
    """
    if n_threads:
        return n_threads, "--torch-threads"
    # "4,2" are the threads of nested regions. OpenMP ignores invalid values.
    first = (of_openmp or "").split(",")[0].strip()
    if first.isdecimal() and int(first):
        return int(first), "OMP_NUM_THREADS"
    if n_weights < _LARGE_WEIGHTS:
        return 1, "the network is small"
    n_left = max(1, (n_cores - n_local_actors) // n_local_ranks)
    return n_left, f"the policy has {n_weights:,} weights, and each learner {n_left} of {n_cores} cores"
