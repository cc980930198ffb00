"""A learner, and a relay before it."""

from collections.abc import Iterator

import pytest

from rollcast.tools.relay.relay import RollcastRelay
from tests.relays import Learner, relaying, serve_learner
from tests.unit.services.conftest import subscriptions_end_soon

__all__ = ["subscriptions_end_soon"]


@pytest.fixture
def learner() -> Iterator[Learner]:
    with serve_learner() as served:
        yield served


@pytest.fixture
def relay(learner: Learner) -> Iterator[RollcastRelay]:
    with relaying(learner.address) as relay:
        yield relay
