"""The `rollcast` command, and `python -m rollcast.learner COMMAND`, which is the same."""

from typing import NoReturn

from rollcast.services.process.imports import keep_imports, uncollected_imports
from rollcast.services.process.interrupts import end_imports_quietly, run_to_end


def main() -> NoReturn:
    """Runs a command, and ends the process; see `rollcast.tools.cli.main`."""
    end_imports_quietly()
    keep_imports()
    run_to_end(_run)


def _run() -> int:
    with uncollected_imports():
        from rollcast.tools.cli import main as run

    return run()


if __name__ == "__main__":
    main()
