"""One target under atheris, in a process of its own: `python -m tests.fuzz.fuzzer TARGET FOLDER SCRATCH --messages N`.

libFuzzer drives: it keeps what reaches new code and changes that again. Each change is its own, of bytes and of what it
has seen compared, or one of the target's. What the oracle refuses is written down and does not end the run; what ends
the process (a crash, a hang, memory above the limit) is written down by libFuzzer.
"""

import argparse
import collections
import faulthandler
import json
import os
import resource
import signal
import sys
import time
import traceback
import tracemalloc
import warnings
from pathlib import Path
from random import Random
from typing import Any

import atheris

from tests.fuzz.oracle import FindingError, Target, judge, limited
from tests.fuzz.targets import TARGETS, make_target

# The address space of a process: torch alone takes 4 GiB of addresses; whoever asks for terabytes is told no.
_MAX_ADDRESS_BYTES = 24 << 30
# Of its own processor time: no message is worth that.
_MAX_MESSAGE_S = 10.0
# Changes that are libFuzzer's own.
_BYTES_SHARE = 0.3
# Enough to see what is wrong; each has an input of its own.
_MAX_FINDINGS = 20


class _Run:
    """Counts what becomes of the messages, and ends the process after the last."""

    def __init__(self, target: Target, n_messages: int, folder: Path) -> None:
        self._target = target
        self._left = self._n_messages = n_messages
        self._folder = folder
        self._kinds: collections.Counter[str] = collections.Counter()
        self._largest = (0.0, 0, 0)
        self._findings: dict[str, str] = {}
        self._began = time.process_time()

    def take(self, message: bytes) -> None:
        """Judges one message."""
        signal.setitimer(signal.ITIMER_VIRTUAL, _MAX_MESSAGE_S)
        try:
            verdict = judge(self._target, message)
            self._kinds[verdict.kind] += 1
            self._largest = max(self._largest, (verdict.fraction, verdict.n_bytes, self._target.bound(message)))
        except FindingError as finding:
            self._kinds["finding"] += 1
            self._note(finding, message)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self._left -= 1
        if self._left == 0 or len(self._findings) == _MAX_FINDINGS:
            self._end()

    def _note(self, finding: FindingError, message: bytes) -> None:
        """Keeps the first message of every place in the code that a finding comes from."""
        cause = finding.__cause__ or finding
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if "tests/fuzz" not in frame.filename]
        place = f"{type(cause).__name__} at {frames[-1].filename}:{frames[-1].lineno}" if frames else str(finding)[:60]
        if place in self._findings:
            return
        path = self._folder / f"finding-{len(self._findings)}"
        path.write_bytes(message)
        path.with_suffix(".txt").write_text("".join(traceback.format_exception(cause)), encoding="utf-8")
        self._findings[place] = f"{finding} ({path})"

    def _end(self) -> None:
        fraction, n_bytes, bound = self._largest
        result = {
            "messages": self._n_messages - self._left,
            "kinds": dict(self._kinds),
            "largest": {"fraction": fraction, "bytes": n_bytes, "bound": bound},
            "cpu_s": time.process_time() - self._began,
            "findings": list(self._findings.values()),
        }
        (self._folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    """Never returns: the last message ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.fuzzer", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("folder", type=Path, help="for findings and the result")
    parser.add_argument("scratch", type=Path, help="for files that a decoder reads; empty")
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("error")
    signal.signal(signal.SIGVTALRM, _took_too_long)
    with atheris.instrument_imports(include=["rollcast.services", "rollcast.actor", "rollcast.learner"]):
        target = make_target(options.target, options.scratch)
    corpus = options.folder / "seeds"
    corpus.mkdir(parents=True)
    with limited(target):
        for number, seed in enumerate(target.seeds):
            (corpus / str(number)).write_bytes(seed)
            target.decode(seed)  # what is imported and made once is nobody's allocation
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_BYTES, _MAX_ADDRESS_BYTES))
        tracemalloc.start(1)
        run = _Run(target, options.messages, options.folder)
        arguments = [
            sys.argv[0],
            f"-seed={options.seed + 1}",  # 0 stands for any
            f"-max_len={target.max_length}",
            "-len_control=0",
            "-timeout=60",
            "-rss_limit_mb=8192",
            f"-artifact_prefix={options.folder}/",
            str(corpus),
        ]
        atheris.Setup(arguments, run.take, custom_mutator=_mutator(target))
        atheris.Fuzz()


def _mutator(target: Target) -> Any:
    def mutate(content: bytes, max_length: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < _BYTES_SHARE:
            return atheris.Mutate(content, max_length)
        changed = target.mutate(content, rng)
        return changed if len(changed) <= max_length else content

    return mutate


def _took_too_long(signum: int, frame: Any) -> None:
    raise TimeoutError(f"a message took {_MAX_MESSAGE_S:g} s of processor time")


if __name__ == "__main__":
    main()
