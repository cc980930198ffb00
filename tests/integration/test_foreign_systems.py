"""An actor that has what Windows has, and no more, dials in to a learner here and plays until training ends."""

from pathlib import Path

import pytest

from tests.processes import DEADLINE_S, ended, free_port, running
from tests.unit.test_foreign_systems import run_as

pytestmark = pytest.mark.slow

ACTOR = """
import sys
from rollcast.tools.cli import main

sys.exit(main(["actor", "--learner-address", sys.argv[1], "--envs-per-actor", "4"]))
"""


def test_an_actor_dials_in_and_plays(tmp_path: Path):
    address = f"localhost:{free_port()}"
    options = ("--total-steps", 2000, "--stop-return", 1e9, "--n-rollout-steps", 16, "--batch-size", 2)
    with running(
        *("learner", "learner", "--address", address, "--algorithm", "impala", "--run-dir", tmp_path / "run"), *options
    ) as learner:
        run_as("win32", ACTOR, tmp_path, address)
        assert ended(learner, within_s=DEADLINE_S) == 0
