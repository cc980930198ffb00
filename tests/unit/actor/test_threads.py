"""In processes of their own: the limits stay, and a process reads the variables once."""

import subprocess
import sys

import pytest

_SHOWS = "import torch, cv2; print(torch.get_num_threads(), cv2.getNumThreads())"
_LIMITS = "from rollcast.actor.threads import limit_threads; limit_threads(1)"


@pytest.mark.slow
@pytest.mark.parametrize("program", [f"{_LIMITS}; {_SHOWS}", f"import torch, cv2; {_LIMITS}; {_SHOWS}"])
def test_libraries_that_are_loaded_before_or_later_take_so_many_threads(program: str):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["1", "1"]


@pytest.mark.slow
def test_processes_that_are_started_later_take_so_many():
    shows = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_SHOWS!r}], check=True)"
    done = subprocess.run(
        [sys.executable, "-c", f"{_LIMITS}; {shows}"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["1", "1"]
