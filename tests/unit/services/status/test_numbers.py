import math

import pytest

from rollcast.services.status import numbers

FORMATS = (
    numbers.count,
    numbers.short_count,
    numbers.rate,
    numbers.decimal,
    numbers.percent,
    numbers.period,
    numbers.clock,
    numbers.short_clock,
    numbers.wall_clock,
)


@pytest.mark.parametrize("written", FORMATS)
@pytest.mark.parametrize("number", [None, math.nan, math.inf, -math.inf])
def test_writes_dash_for_unknown(written, number):
    assert written(number) == "-"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (numbers.count(18_200_000), "18,200,000"),
        (numbers.counted(0, "update"), "0 updates"),
        (numbers.counted(1, "update"), "1 update"),
        (numbers.counted(20.7363, "round"), "21 rounds"),
        (numbers.counted(1_200, "policy", "policies"), "1,200 policies"),
        (numbers.short_count(950), "950"),
        (numbers.short_count(41_234), "41.2k"),
        (numbers.short_count(18_200_000), "18.2M"),
        (numbers.short_count(999_960), "1.0M"),
        (numbers.short_count(0.0), "0"),
        (numbers.rate(41_200.4), "41,200/s"),
        (numbers.rate(0.31), "0.31/s"),
        (numbers.rate(0.0), "0/s"),
        (numbers.decimal(214.345), "214.3"),
        (numbers.decimal(-0.03123), "-0.0312"),
        (numbers.decimal(1_234_567.8), "1,234,568"),
        (numbers.decimal(0.0), "0.0"),
        (numbers.percent(0.384), "38 %"),
        (numbers.period(0.0124), "12 ms"),
        (numbers.limit(600.0), "for up to 10 min"),
        (numbers.limit(math.inf), "without a limit"),
        (numbers.period(0.0012), "1.2 ms"),
        (numbers.period(0.9999), "1.0 s"),
        (numbers.period(14.2), "14 s"),
        (numbers.period(300), "5 min"),
        (numbers.period(12_000), "3 h 20 min"),
        (numbers.clock(761.9), "0:12:41"),
        (numbers.short_clock(761.9), "12:41"),
        (numbers.short_clock(3.9), "0:03"),
        (numbers.short_clock(63.0), "1:03"),
        (numbers.short_clock(12_000), "3:20:00"),
        (numbers.clock(-3.0), "-0:00:03"),
        (numbers.clock(-0.4), "0:00:00"),
        (numbers.clock(360_000), "100:00:00"),
    ],
)
def test_writes_numbers_with_units_and_separators(written, text):
    assert written == text


@pytest.mark.parametrize("exponent", range(14))
def test_short_counts_have_at_most_six_characters(exponent):
    assert len(numbers.short_count(9.9999 * 10**exponent)) <= 6


def test_wall_clock_has_date_and_time():
    assert len(numbers.wall_clock(1_700_000_000.0)) == len("2026-03-01 12:40:11")
