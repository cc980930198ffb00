"""In processes of their own: the limits stay, and a process reads the variables once."""

import subprocess
import sys

import pytest

_SHOWS = "import torch, cv2; print(torch.get_num_threads(), cv2.getNumThreads())"
_LIMITS = "from rollcast.actor.threads import limit_threads; limit_threads(1)"


@pytest.mark.slow
def test_libraries_that_are_loaded_before_and_processes_that_are_started_later_take_so_many_threads():
    later = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_SHOWS!r}], check=True)"
    program = f"import torch, cv2; {_LIMITS}; print(torch.get_num_threads(), cv2.getNumThreads(), flush=True); {later}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["1"] * 4
