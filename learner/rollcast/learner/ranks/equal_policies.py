"""Compares the policies of all ranks, which must be equal after every update."""

import hashlib
from collections.abc import Sequence
from typing import Final

from rollcast.actor.policies.exploration import without_exploration
from rollcast.services.errors import RollcastError
from rollcast.services.policies.policies import PolicyState

# The number of bytes of a digest, which a float64 holds exactly.
_DIGEST_BYTES: Final = 6


def policy_digest(state: PolicyState) -> int:
    """Returns a digest of a policy's weights, mean and variance, which a float64 holds exactly; never 0.

    The exploration of actors is omitted, because it depends on how full each rank's buffer is.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, array in sorted(without_exploration(state).items()):
        digest.update(name.encode())
        digest.update(array.tobytes())
    return int.from_bytes(digest.digest(), "big") or 1


def check_equal(digests: Sequence[int], n_round: int) -> None:
    """Checks that all ranks have the same policy.

    Args:
        digests: The digest of each rank's policy; 0: no comparison in this round.
        n_round: The number of the round.

    Raises:
        RollcastError: The digests differ.
    """
    other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if other:
        differing = f"{'ranks' if len(other) > 1 else 'rank'} {', '.join(map(str, other))} of {len(digests)} no longer "
        differing += "have" if len(other) > 1 else "has"
        raise RollcastError(
            f"before update round {n_round} the policies of the ranks differ: {differing} the policy of "
            "rank 0; expected equal parameters after every update; use the same hardware, torch and "
            "--torch-threads for all ranks, and resume from the last checkpoint"
        )
