"""An actor process that dials in to a learner: `python -m rollcast.actor --learner-address HOST:PORT`."""

from typing import NoReturn

from rollcast.services.process.imports import keep_imports, uncollected_imports
from rollcast.services.process.interrupts import end_imports_quietly, run_to_end


def main() -> NoReturn:
    """Runs an actor, and ends the process; see `rollcast.actor.acting.process.main`."""
    end_imports_quietly()
    keep_imports()
    run_to_end(_run)


def _run() -> int:
    with uncollected_imports():
        from rollcast.actor.acting.process import main as run

    return run()


if __name__ == "__main__":
    main()
