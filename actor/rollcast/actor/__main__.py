"""An actor process that dials in to a learner: `python -m rollcast.actor --learner-address HOST:PORT`."""

import sys

from rollcast.services.process.interrupts import INTERRUPTED, end_imports_quietly, end_now


def main() -> int:
    """Runs an actor; see `rollcast.actor.acting.process.main`."""
    end_imports_quietly()
    try:
        from rollcast.actor.acting.process import main as run

        exit_code = run()
    except KeyboardInterrupt:
        exit_code = INTERRUPTED
    if exit_code == INTERRUPTED:
        end_now(exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
