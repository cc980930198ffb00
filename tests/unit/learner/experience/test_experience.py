from typing import NoReturn

import pytest

from rollcast.learner.experience.experience import ExperienceSource
from rollcast.services.errors import ConfigurationError


class OnesOwn(ExperienceSource):
    """A source of a user, which knows nothing of ranks."""

    def next(self, learner_device: str, *, progress: float = 0.0) -> NoReturn:
        raise NotImplementedError


def test_a_source_of_ones_own_needs_no_empty_batch_but_with_several_ranks():
    source = OnesOwn(None)
    with pytest.raises(ConfigurationError, match=r"OnesOwn with several ranks.*overrides empty_batch"):
        source.empty_batch("cpu")
