"""Clocks of processes that are set forwards and backwards, as by an administrator or NTP."""

import importlib.util
from pathlib import Path

_LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"
_SHARED_MEMORY = Path("/dev/shm")


class Clock:
    """The time of day of a process: libfaketime's, from a file. CLOCK_MONOTONIC goes on as ever."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set(0)

    def set(self, offset_s: int) -> None:
        """Sets it so many seconds ahead of the true time; below 0, behind it."""
        temporary = self._path.with_suffix(".new")
        temporary.write_text(f"{offset_s:+d}")
        temporary.replace(self._path)

    def variables(self) -> dict[str, str]:
        """The environment of a process that is to look at this clock."""
        spec = importlib.util.find_spec("libfaketime")
        assert spec is not None, "libfaketime is in the dev group"
        assert spec.origin is not None, "it is a package"
        return {
            "LD_PRELOAD": str(Path(spec.origin).parent / _LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


def remove_traces() -> None:
    """Removes what libfaketime keeps in shared memory for every process, of processes that were killed."""
    for path in _SHARED_MEMORY.glob("*faketime_s*"):
        pid = path.name.rpartition("_")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            path.unlink(missing_ok=True)
