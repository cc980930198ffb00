"""Formats numbers for display, with units, thousands separators and a bounded width; "-" means unknown."""

import math
import time
from typing import Final, TypeGuard

UNKNOWN: Final = "-"
_POWERS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(number: float | None) -> str:
    """Returns a whole number, such as "18,200,000"."""
    return f"{number:,.0f}" if _known(number) else UNKNOWN


def counted(number: float, one: str, many: str = "") -> str:
    """Returns a whole number of things, such as "1 update" or "1,200 updates".

    Args:
        number: The number of things.
        one: The word for one of them.
        many: The word for several; empty: `one` with an s.
    """
    return f"{count(number)} {one if round(number) == 1 else many or f'{one}s'}"


def short_count(number: float | None) -> str:
    """Returns a whole number below 900 T in at most 6 characters, such as "950", "41.2k" or "18.2M"."""
    if not _known(number):
        return UNKNOWN
    for power, letter in _POWERS:
        # 999,950 would be "1000.0k"
        if abs(number) >= power * 0.99995:
            return f"{number / power:.1f}{letter}"
    return f"{number:.0f}"


def rate(number: float | None) -> str:
    """Returns a rate per second, such as "41,200/s" or "0.31/s"."""
    if not _known(number):
        return UNKNOWN
    return f"{number:,.0f}/s" if number >= 10 or number == 0 else f"{number:.2g}/s"


def decimal(number: float | None) -> str:
    """Returns a number of any magnitude, such as "214.3", "-0.0312" or "1,234,567"."""
    if not _known(number):
        return UNKNOWN
    size = abs(number)
    if size >= 1e12:
        return f"{number:.4g}"
    if size >= 1e5:
        return f"{number:,.0f}"
    return f"{number:,.1f}" if size >= 10 or number == 0 else f"{number:.3g}"


def percent(fraction: float | None) -> str:
    """Returns a fraction in percent, such as "38 %"."""
    return f"{100 * fraction:.0f} %" if _known(fraction) else UNKNOWN


def period(seconds: float | None) -> str:
    """Returns a duration, such as "12 ms", "1.2 s", "14 s", "5 min" or "3 h 20 min"."""
    if not _known(seconds):
        return UNKNOWN
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.0095 or seconds == 0 else f"{1000 * seconds:.1f} ms"
    if seconds < 119.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds / 60)
    return f"{whole} min" if whole < 120 else f"{whole // 60:,} h {whole % 60} min"


def limit(seconds: float) -> str:
    """Returns an upper limit on a duration, such as "for up to 10 min"; "without a limit" for infinity."""
    return f"for up to {period(seconds)}" if math.isfinite(seconds) else "without a limit"


def minutes(seconds: float) -> str:
    """Returns whole minutes, such as "1 min"."""
    return f"{seconds / 60:.0f} min"


def clock(seconds: float | None) -> str:
    """Returns a time relative to the start of the run, such as "0:12:41", or "-0:00:03" before the start."""
    if not _known(seconds):
        return UNKNOWN
    whole, rest = divmod(int(abs(seconds)), 60)
    hours, whole = divmod(whole, 60)
    return f"{'-' if seconds <= -1 else ''}{hours:,}:{whole:02d}:{rest:02d}"


def short_clock(seconds: float | None) -> str:
    """Returns a time, without hours below one hour, such as "12:41" or "3:20:00"."""
    text = clock(seconds)
    return text.removeprefix("0:").removeprefix("0") if text.startswith("0:") else text


def wall_clock(unix_s: float | None) -> str:
    """Returns the date and time in this process's time zone, such as "2026-03-01 12:40:11"."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if _known(unix_s) else UNKNOWN


def _known(number: float | None) -> TypeGuard[float]:
    return number is not None and math.isfinite(number)
