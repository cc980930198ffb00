"""Node.js, and the packages of `tests/integration/node`, which the clients in JavaScript need, too."""

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.needs import lacks
from tests.processes import ROOT

NODE = ROOT / "tests/integration/node"


def node_with_packages(shared: Path) -> str:
    """Returns the path of Node.js, after installing the packages as their lock file says.

    Args:
        shared: A folder that the processes of this test run share; they install one at a time.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            lacks(program, f"{program} is not installed")
    lock, installed = NODE / "package-lock.json", NODE / "node_modules" / ".package-lock.json"
    with (shared / "npm.lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
            done = subprocess.run(
                ["npm", "ci", "--no-progress"], cwd=NODE, capture_output=True, text=True, check=False, timeout=240
            )
            assert done.returncode == 0, f"npm ci failed:\n{done.stderr[-1500:]}"
    return str(shutil.which("node"))
