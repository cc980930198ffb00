"""`make numeric`: each run has the instructions and threads of its name, failures and missing instructions are told."""

import itertools
import os
import subprocess
import sys

import pytest
import torch

from tests import numeric
from tests.numeric import INSTRUCTIONS, Outcome, files, here_and_missing, main, variables

ASKS = "import torch; print(torch.backends.cpu.get_cpu_capability().lower(), torch.get_num_threads())"


@pytest.mark.slow
def test_each_run_computes_with_its_instructions_on_its_threads():
    here, _ = here_and_missing(torch.backends.cpu.get_cpu_capability().lower())
    # one or two, as runs have: torch takes no more than there are cores
    for n_threads, name in zip(itertools.cycle((1, 2)), here, strict=False):
        command = [sys.executable, "-c", ASKS]
        environment = os.environ | variables(name, n_threads)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.split() == [name, str(n_threads)]


@pytest.mark.parametrize("failing", ["", "avx2"])
def test_failures_and_what_the_processor_lacks_are_told(failing, monkeypatch, capsys, tmp_path):
    ran = []

    def run(name: str, n_threads: int, arguments: list[str]) -> Outcome:
        ran.append((name, n_threads))
        assert "tests/unit/learner/devices/test_graphs.py" in arguments
        return Outcome(f"{name}, {n_threads}", f"what {name} printed\n=== 5 tests ===", name == failing, 2.0, 3.0)

    monkeypatch.setattr(numeric, "most_of_this_processor", lambda: "avx2")
    monkeypatch.setattr(numeric, "run", run)
    monkeypatch.setattr(numeric, "REPORTS", tmp_path)
    assert main(["-x"]) == bool(failing)
    assert sorted(ran) == [("avx2", 1), ("avx2", 2), ("default", 1), ("default", 2)]
    printed = capsys.readouterr().out
    assert "avx512             skipped: this processor has no more than avx2\n" in printed
    assert (tmp_path / "numeric.skipped").read_text() == "avx512: this processor has no more than avx2"
    assert "default, 2             2 s,    3 s of processor: 5 tests\n" in printed
    assert ("what avx2 printed" in printed) == bool(failing)
    assert "what default printed" not in printed


def test_the_last_instructions_lack_nothing():
    assert here_and_missing("avx512") == (list(INSTRUCTIONS), [])


def test_files_are_those_of_the_folders_and_those_that_compare_within_a_tolerance():
    found = set(files())
    assert "tests/unit/learner/algorithms/test_on_accelerator.py" in found, "in a folder, and compares bits"
    assert "tests/unit/learner/ranks/test_reduction.py" in found, "elsewhere, and compares within a tolerance"
    assert "tests/unit/learner/algorithms/test_learning.py" not in found, "trains"
    assert "tests/unit/learner/ranks/test_assignment.py" not in found, "compares nothing that is computed"
