"""The judge of `make soak` finds what grows, and only that."""

import re

import numpy as np
import pytest

from tests.soak.judge import judge, theil_sen
from tests.soak.samples import Sample

MB = 10**6


def samples(
    name="p", *, pid=1, seconds=1800, memory_mb=lambda t: 300.0, threads=lambda t: 20, descriptors=lambda t: 15
):
    rng = np.random.default_rng(0)
    return [
        Sample(
            time_s=float(t),
            process=name,
            pid=pid,
            resident_bytes=int((memory_mb(t) + rng.normal(0, 0.3)) * MB),
            threads=threads(t),
            descriptors=descriptors(t),
            children=0,
        )
        for t in range(0, seconds, 5)
    ]


def growing(taken):
    (verdict,) = judge(taken, warm_up_s=600)
    return " and ".join(verdict.growing)


@pytest.mark.parametrize(
    "flat",
    [
        {},
        {"memory_mb": lambda t: 300 + 80 * min(t / 500, 1)},  # a buffer that is filled
        {"memory_mb": lambda t: 400 if 900 <= t < 1200 else 300},  # something large for a while
        {"memory_mb": lambda t: 300 + 5 * t / 3600},
        {"descriptors": lambda t: 15 + t // 45 % 2},  # an actor that comes and goes
        {"descriptors": lambda t: 14 if t == 700 else 15},  # a moment between two connections
        {"threads": lambda t: 20 + (t > 1000)},  # as many at work as never before
    ],
)
def test_what_is_flat(flat):
    assert not growing(samples(**flat))


@pytest.mark.parametrize(
    ("leak", "found"),
    [
        ({"memory_mb": lambda t: 300 + 12 * t / 3600}, r"^memory by \+1[12]\.\d \[.* MB an hour, above the bar of 10$"),
        ({"memory_mb": lambda t: 300 + (200 if 900 <= t < 1000 else 0) + 30 * t / 3600}, "^memory by"),
        ({"descriptors": lambda t: 15 + t // 400}, r"^descriptors from 16 to 18$"),
        ({"descriptors": lambda t: 15 + t // 45 % 2 + (t > 1000)}, r"^descriptors from 15 to 16$"),
        ({"threads": lambda t: 20 + t // 300}, r"^threads from 22 to 24$"),
    ],
)
def test_what_grows_is_named(leak, found):
    assert re.search(found, growing(samples(**leak)))


def test_only_who_is_there_all_the_time_is_judged():
    whole = samples("learner")
    gone = samples("actor", seconds=1000)
    again = [sample for sample in samples("actor", pid=2) if sample.time_s > 1000]
    assert [verdict.process for verdict in judge([*whole, *gone, *again], warm_up_s=600)] == ["learner"]
    assert judge([], warm_up_s=600) == []


def test_the_slope_is_the_median_one_and_its_interval_holds_it():
    time_s = np.arange(0.0, 3600.0, 60.0)
    values = 2.0 * time_s / 3600 + np.random.default_rng(1).normal(0, 0.1, len(time_s))
    values[::7] += 50  # a seventh of outliers
    growth = theil_sen(time_s, values)
    assert growth.low < 2.0 < growth.high
    assert abs(growth.median - 2.0) < 0.5
