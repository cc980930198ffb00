import subprocess
import sys

from rollcast.services.process.usage import usage_with_children

# Starts a process below it, which fills 64 MiB and computes for 0.2 s, says so, and waits.
BELOW = """
import sys, time
filled = b"x" * (64 << 20)
while time.process_time() < 0.2:
    pass
print("ready", flush=True)
sys.stdin.read()
"""
BETWEEN = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""


def test_processes_below_those_that_it_started_count():
    before = usage_with_children()
    command = [sys.executable, "-c", BETWEEN, BELOW]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        during = usage_with_children()
        child.communicate("", timeout=60)
    after = usage_with_children()
    assert during.memory_bytes - before.memory_bytes > 64 << 20
    assert during.memory_bytes - after.memory_bytes > 64 << 20
    assert during.cpu_s - before.cpu_s >= 0.15
    assert after.cpu_s - before.cpu_s >= 0.15, "the time of those that have ended stays"
    assert before.cpu_s > 0.0
