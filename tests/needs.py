"""Skips tests that lack something beside this tree: an engine, a cluster, a browser. CI has it, and they fail there."""

import os
from typing import NoReturn

import pytest


def lacks(what: str, reason: str) -> NoReturn:
    """Skips the test; fails it in CI, which has what it needs.

    Args:
        what: The name of the missing thing. On a machine where `.ci/run` cannot have it, `CI_LACKS` holds the name, and
            the test is skipped in CI too.
        reason: What is missing, for people.
    """
    if os.environ.get("CI") == "true" and what not in os.environ.get("CI_LACKS", "").split():
        pytest.fail(f"{reason}; CI must have it: see .ci/run", pytrace=False)
    pytest.skip(reason)
