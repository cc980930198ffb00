"""Runs targets, each in a process of its own, and collects what they say."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.report import TargetReport

# A target's process has so long: no message takes half of that on average, and a hang is a finding of libFuzzer's.
_DEADLINE_S = 300.0
_DEADLINE_S_PER_MESSAGE = 0.2
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")


def shared_out(n_messages: int, shares: Mapping[str, float]) -> Mapping[str, int]:
    """Returns the number of messages that each target gets; at least 1, and together no fewer than asked for."""
    total = sum(shares.values())
    return {name: -int(-n_messages * share // total) for name, share in shares.items()}


def fuzz(name: str, folder: Path, n_messages: int, seed: int) -> TargetReport:
    """Fuzzes one target.

    Args:
        name: The target's.
        folder: For what it writes: findings, logs; made.
        n_messages: How many.
        seed: Which.

    Returns:
        What became of them; a process that did not come to its end is a finding.
    """
    folder.mkdir(parents=True)
    log = folder / "log"
    options = ["--messages", str(n_messages), "--seed", str(seed)]
    # the process ends in whatever way it ends: what it needs is removed here
    with (
        tempfile.TemporaryDirectory(prefix="rollcast-fuzz-", dir=_memory_folder()) as scratch,
        log.open("wb") as output,
    ):
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "tests.fuzz.fuzzer", name, str(folder), scratch, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_DEADLINE_S + _DEADLINE_S_PER_MESSAGE * n_messages,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            ended = None
    result = folder / "result.json"
    said = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    findings = list(said.get("findings", ()))
    if not said:
        left = [path.name for pattern in ("crash-*", "timeout-*", "oom-*") for path in folder.glob(pattern)]
        findings.append(f"its process ended with {ended} before its last message, and left {left}; see {log}")
    coverage = _COVERAGE.findall(log.read_text(encoding="utf-8", errors="replace")) or [("0", "0")]
    largest = said.get("largest", {"bytes": 0, "bound": 0})
    return TargetReport(
        name=name,
        n_messages=said.get("messages", 0),
        edges=int(coverage[-1][0]),
        features=int(coverage[-1][1]),
        kinds=said.get("kinds", {}),
        largest_bytes=largest["bytes"],
        largest_bound=largest["bound"],
        cpu_s=said.get("cpu_s", 0.0),
        findings=findings,
    )


def _memory_folder() -> str | None:
    """A file system in memory, where there is one: a decoder of files reads a thousand a second."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
