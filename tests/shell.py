"""A fresh shell, in which tests type what the documentation shows."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.processes import ROOT, free_port
from tests.zygote import end_with_parent

# Makes every run small.
SMALL = {
    "ROLLCAST_TOTAL_STEPS": "1",
    "ROLLCAST_N_ACTORS": "1",
    "ROLLCAST_ACTOR_KIND": "sequential",
    "ROLLCAST_ENVS_PER_ACTOR": "4",
    "ROLLCAST_BATCH_SIZE": "4",
}


class Shell:
    """A fresh shell in a folder of its own, with the examples as in a checkout, and a port for the pages'."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "home").mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        self._activate = f". {shlex.quote(str(Path(sys.executable).parent / 'activate'))} && "
        self._variables = {
            "HOME": str(folder / "home"),
            "PATH": os.defpath,
            "ROLLCAST_ADDRESS": self.address,
            "ROLLCAST_LEARNER_ADDRESS": self.address,
        }

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def here(self, text: str) -> str:
        """Returns a text with the placeholders for hosts and the port replaced."""
        for host in ("LEARNER_HOST", "learner.example.org"):
            text = text.replace(f"{host}:50051", "localhost:50051")
        return text.replace(":50051", f":{self.port}")

    def run(self, command: str, **variables: str) -> str:
        """Types a command and returns what it prints."""
        done = subprocess.run(**self._process(command, variables), capture_output=True, timeout=240)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def running(self, command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Types a command in the background, and kills what is left of it."""
        process = subprocess.Popen(
            **self._process(re.sub(r"^((?:[A-Z]+=\S+ )*)", r"\1exec ", command), variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509  # one call of the system, with nothing to import or to lock
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _process(self, command: str, variables: dict[str, str]) -> dict[str, object]:
        environment = self._variables | SMALL | variables
        script = self._activate + self.here(command)
        return {"args": ["bash", "-c", script], "cwd": self.folder, "env": environment, "text": True}
