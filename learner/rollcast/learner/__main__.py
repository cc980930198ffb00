"""The `rollcast` command, and `python -m rollcast.learner COMMAND`, which is the same."""

import sys

from rollcast.services.process.interrupts import INTERRUPTED, end_imports_quietly, end_now


def main() -> int:
    """Runs a command; see `rollcast.learner.commands.cli.main`."""
    end_imports_quietly()
    try:
        from rollcast.learner.commands.cli import main as run

        exit_code = run()
    except KeyboardInterrupt:
        exit_code = INTERRUPTED
    if exit_code == INTERRUPTED:
        end_now(exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
