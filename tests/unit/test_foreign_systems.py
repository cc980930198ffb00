"""On Windows and macOS rollcast imports, acts, exports and dials in: tried with what these systems lack taken away."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollcast.services.policies.saved import encode_saved_policy
from tests.processes import ROOT, environment
from tests.unit.tools.policy_server.test_followed import SAVED

pytestmark = pytest.mark.slow

# Modules for POSIX alone: the terminal of `rollcast top`.
POSIX_ONLY = {"rollcast.tools.top.command"}
# Imports stable_baselines3, whose own dependencies notice that the system is another.
OF_ITS_USERS = {"rollcast.actor.dialling.sb3_vec_env"}
PUBLIC = """
import importlib, pkgutil, sys
import rollcast.actor, rollcast.learner, rollcast.services, rollcast.tools, rollcast.v1
for package in (rollcast.services, rollcast.actor):
    for name in package.__all__:
        getattr(package, name)
failed = []
for package in (rollcast.v1, rollcast.services, rollcast.actor, rollcast.learner, rollcast.tools):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name in POSIX_ONLY or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed.append(f"{module.name}: {error!r}")
print("\\n".join(failed) or "all imported")
"""
ACT = """
import sys
import numpy as np
from rollcast.actor import load_policy
from rollcast.tools.cli import main

print(load_policy(sys.argv[1]).act(np.zeros(3, np.float32), deterministic=True))
assert main(["export", sys.argv[1], "--check", "100"]) == 0
"""


def run_as(system: str, program: str, folder: Path, *arguments: object) -> str:
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "tests.foreign_system", system, path, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment(),
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_policy_acts_and_is_exported_and_every_module_is_imported(system: str, tmp_path: Path):
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(encode_saved_policy(SAVED))
    public = PUBLIC.replace("POSIX_ONLY", repr(OF_ITS_USERS | (POSIX_ONLY if system == "win32" else set())))
    # one process for both: it imports the libraries for seconds
    printed = run_as(system, ACT + public, tmp_path, policy)
    assert re.match(r"[01]\n", printed)
    assert (tmp_path / "policy.onnx").is_file()
    assert printed.endswith("\nall imported\n")
