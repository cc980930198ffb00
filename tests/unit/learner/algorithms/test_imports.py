"""The first update of an algorithm imports no package that takes long and serves nothing."""

import subprocess
import sys

import pytest

from tests.processes import ROOT

UPDATE = """
import sys
from tests.every_algorithm import CASES
case = CASES[sys.argv[1]]
case.update(case.make("cpu"), case.batches("cpu"))
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


# A fresh process for each, since pytest has imported the package long before.
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["impala", "ppo", "dqn", "r2d2", "sac: discrete"])
def test_the_first_update_does_without_sympy(algorithm: str):
    command = [sys.executable, "-c", UPDATE, algorithm]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    packages = process.stdout.split()
    assert "torch" in packages
    assert "sympy" not in packages
