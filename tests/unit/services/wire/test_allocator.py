import subprocess
import sys

import pytest

# Four buffers of 8 MiB at a time, twenty times over; prints how many pages the kernel had to give.
PROGRAM = """
import resource
from rollcast.services.wire.allocator import reuse_large_buffers
reuse_large_buffers()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    buffers = [b"x" * (8 << 20) for _ in range(4)]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_large_buffers_are_the_same_pages_again():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    once = 4 * (8 << 20) // 4096
    assert int(result.stdout) < 2 * once
