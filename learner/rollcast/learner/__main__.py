"""The `rollcast` command, and the equivalent `python -m rollcast.learner COMMAND`."""

from typing import NoReturn

from rollcast.services.process.grpc_log import print_only_errors_of_grpc
from rollcast.services.process.imports import keep_imports, uncollected_imports
from rollcast.services.process.interrupts import end_imports_quietly, run_to_end


def main() -> NoReturn:
    """Runs a command, and ends the process; see `rollcast.tools.cli.main`."""
    end_imports_quietly()
    keep_imports()
    print_only_errors_of_grpc()
    run_to_end(_run)


def _run() -> int:
    with uncollected_imports():
        from rollcast.tools.cli import main as run

    return run()


if __name__ == "__main__":
    main()
