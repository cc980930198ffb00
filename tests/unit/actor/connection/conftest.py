"""Subscriptions that end soon, for learners that stop."""

from tests.unit.services.conftest import subscriptions_end_soon

__all__ = ["subscriptions_end_soon"]
