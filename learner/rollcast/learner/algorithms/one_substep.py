"""Checks that spaces and batches hold the one substep that an algorithm learns."""

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import EnvironmentSpaces


def only_substep(spaces: EnvironmentSpaces, *, algorithm: str) -> str:
    """Returns the key of an environment's only substep.

    Args:
        spaces: The environment's spaces by substep key.
        algorithm: The algorithm's name, for the message.

    Raises:
        ConfigurationError: If there is not exactly one substep.
    """
    if len(spaces) != 1:
        raise ConfigurationError(
            f"The environment has {len(spaces)} substeps {sorted(spaces)}; {algorithm} supports exactly 1. Give each "
            "substep its own learner, with IndependentLearners."
        )
    return next(iter(spaces))


def columns_of(batch: Batch, substep_key: str) -> BatchColumns:
    """Returns the columns of a batch's only substep.

    Args:
        batch: The batch.
        substep_key: The substep that the algorithm was made for.

    Raises:
        ConfigurationError: If the batch holds other substeps.
    """
    if batch.substeps.keys() != {substep_key}:
        raise ConfigurationError(
            f"The batch holds the substeps {sorted(batch.substeps)}; expected [{substep_key!r}], for which this "
            "algorithm was made. Use batches of the environment that the algorithm was made for."
        )
    return batch.substeps[substep_key]
