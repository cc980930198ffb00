"""Samples of `/proc`: of this process, and of one below it that takes more and more."""

import itertools
import os
import subprocess
import sys

from tests.soak.samples import SampleFile, read_samples, take_samples

# Says a line each time it has taken more: 8 MB, a thread, a descriptor.
_GREEDY = """
import os, sys, threading
kept = []
for line in sys.stdin:
    kept += [bytearray(b"x" * 8_000_000), os.open(os.devnull, os.O_RDONLY)]
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("more", flush=True)
"""


def test_a_process_that_takes_more_and_more(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _GREEDY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        taken = []
        for time_s in range(3):
            process.stdin.write("more\n")
            process.stdin.flush()
            process.stdout.readline()
            taken += take_samples("greedy", process.pid, float(time_s))
        own = take_samples("this", os.getpid(), 2.0)
        process.stdin.close()
    assert [sample.pid for sample in taken] == [process.pid] * 3
    for attribute, least in (("resident_bytes", 7_000_000), ("threads", 1), ("descriptors", 1)):
        values = [getattr(sample, attribute) for sample in taken]
        assert all(after - before >= least for before, after in itertools.pairwise(values)), attribute
    assert own[0].process == "this"
    assert own[0].children == len(own) - 1 >= 1
    assert process.pid in [sample.pid for sample in own[1:]]
    assert take_samples("greedy", process.pid, 3.0) == [], "it has ended"
    with (tmp_path / "samples.csv").open("w", newline="") as file:
        SampleFile(file).write(taken)
    assert read_samples(tmp_path / "samples.csv") == taken
