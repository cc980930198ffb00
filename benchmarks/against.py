"""Compares this tree with a commit: the processor time of both, measured in turns on this machine.

    make bench-against COMMIT=31ce8b1
    make bench-against ARGS=--quick

The commit is unpacked into a temporary folder, and both trees get an environment that borrows the packages installed
here; what the commit requires besides is installed for it alone. In each round both trees do the same work, one right
after the other in new processes, and the tree that begins changes: A B, B A, A B. The ratio of a round is this tree's
processor time divided by the commit's; the table has the median of all rounds, the smallest and the largest.
Without a commit: the newest tag before this commit, and where there is none, the commit in `benchmarks/BASELINE`.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from packaging.requirements import Requirement

from benchmarks import against_drivers
from benchmarks.against_drivers import DRIVERS, Costs
from benchmarks.table import Figure, print_table, ratio

ROOT = Path(__file__).resolve().parent.parent
BASELINE = Path("benchmarks", "BASELINE")
# Left out with --quick, which has no time for two sizes.
_NOT_QUICK = ("ingest of 1 MiB",)


class AgainstError(Exception):
    """The comparison cannot be made; the message says why and what to do."""


class NotMeasurableError(Exception):
    """One thing cannot be measured in one tree; the message says why, in a line."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree that can be run.

    Attributes:
        name: Its commit.
        folder: Its files.
        python: An interpreter that imports the packages of this tree.
    """

    name: str
    folder: Path
    python: Path


@dataclass(slots=True)
class Comparison:
    """All rounds of one thing.

    Attributes:
        rounds: The costs in this tree and in the other, for each round.
        reason: The reason why it was not measured; empty if it was.
    """

    rounds: list[tuple[Costs, Costs]] = field(default_factory=list)
    reason: str = ""


def git(folder: Path, *arguments: str) -> str:
    """Asks git; returns its answer without the end of the line.

    Raises:
        AgainstError: Git is not there, or fails.
    """
    try:
        answer = subprocess.run(("git", *arguments), cwd=folder, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise AgainstError("git is not installed; expected it, to unpack the commit: install git") from error
    except subprocess.CalledProcessError as error:
        raise AgainstError(f"`git {' '.join(arguments)}` in {folder} failed:\n{last_lines(error.stderr)}") from error
    return answer.stdout.strip()


def last_lines(text: str, n: int = 8) -> str:
    """Returns the last lines of an output, indented."""
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-n:])


def resolve(repository: Path, name: str | None) -> str:
    """Returns the hash of a commit; of the default one if there is no name.

    Raises:
        AgainstError: There is no such commit.
    """
    try:
        git(repository, "rev-parse", "--git-dir")
    except AgainstError as error:
        raise AgainstError(f"{error}\n{repository} must be a clone, which holds other commits: git clone") from error
    if not name:
        try:
            name = git(repository, "describe", "--tags", "--abbrev=0", "HEAD^")
        except AgainstError:  # no tag before it
            name = (repository / BASELINE).read_text(encoding="utf-8").strip()
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except AgainstError as error:
        raise AgainstError(
            f"there is no commit {name!r} in {repository}; expected a hash, a tag or a branch of `git log --all`. "
            "In a shallow clone older ones come with: git fetch --unshallow --tags"
        ) from error


def described(repository: Path) -> str:
    """Returns the short hash of what is checked out, and says if files differ from it."""
    commit = git(repository, "rev-parse", "--short", "HEAD")
    is_clean = not git(repository, "status", "--porcelain")
    return commit if is_clean else f"{commit} with changes that are not committed"


def unpack(repository: Path, commit: str, folder: Path) -> None:
    """Writes the files of a commit into a folder."""
    archive = folder.with_suffix(".tar")
    git(repository, "archive", "--format=tar", f"--output={archive}", commit)
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()


def requirements(project: Mapping[str, Any]) -> Iterator[Requirement]:
    """Yields what a learner of this project requires on this machine; `project` is the table of pyproject.toml."""
    extras = project.get("optional-dependencies", {})
    waiting = [*project.get("dependencies", ()), *extras.get("learner", ())]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == project["name"]:
            waiting += itertools.chain.from_iterable(extras[extra] for extra in requirement.extras)
        elif requirement.marker is None or requirement.marker.evaluate():
            yield requirement


def is_installed(requirement: Requirement) -> bool:
    """Returns whether a version that is right lies in this environment."""
    try:
        return requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def make_runnable(name: str, folder: Path, environment: Path) -> Tree:
    """Makes an environment with the packages of a tree and those that are installed here, and tries the tree's command.

    Raises:
        AgainstError: The tree is not one of this project's, something that it requires cannot be installed, it does
            not compile, or it cannot be imported.
    """
    try:
        with (folder / "pyproject.toml").open("rb") as file:
            settings = tomllib.load(file)
        project = settings["project"]
        roots = [folder / root for root in settings["tool"]["hatch"]["build"]["dev-mode-dirs"]]
        module, _, function = project["scripts"]["rollcast"].partition(":")
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise AgainstError(
            f"{name} cannot be built: its pyproject.toml does not say what it requires and where its packages are "
            f"({type(error).__name__}: {error}); expected a commit of this project"
        ) from error
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    borrowed = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    (packages,) = environment.glob("lib/python*/site-packages")
    lines = [f"{path}\n" for path in (*roots, folder, *borrowed)]
    (packages / "tree.pth").write_text("".join(lines), encoding="utf-8")
    missing = [str(requirement) for requirement in requirements(project) if not is_installed(requirement)]
    if missing:
        print(f"{name} requires more than is installed here, so it gets its own: {', '.join(missing)}", file=sys.stderr)
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
        constraints = folder / "constraints.txt"
        must_succeed(
            (*pip, *(("-c", constraints) if constraints.exists() else ()), *missing), f"{name} cannot be built"
        )
    # without it the first measurement alone would compile
    must_succeed((python, "-m", "compileall", "-q", *roots), f"{name} does not compile")
    program = f"import sys; from {module} import {function}; sys.argv[0] = 'rollcast'; sys.exit({function}())"
    must_succeed((python, "-P", "-c", program, "train", "--help"), f"{name} cannot be imported")
    return Tree(name, folder, python)


def must_succeed(command: Sequence[object], what: str) -> None:
    """Runs a command to its end.

    Raises:
        AgainstError: It fails; the message has its last lines.
    """
    try:
        subprocess.run(
            list(map(str, command)),
            env=quiet_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise AgainstError(
            f"{what}:\n{last_lines(error.stdout)}\nexpected a commit that runs; choose another, or mend this one"
        ) from error


def measure(tree: Tree, name: str, python: Path, limit_s: float) -> Costs:
    """Measures one thing in one tree.

    Args:
        tree: The tree that is measured.
        name: The name of a driver.
        python: The interpreter with the packages of this tree, for what plays the part of others.
        limit_s: The seconds after which it counts as hanging.

    Raises:
        NotMeasurableError: The driver failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="measured-") as folder:
        log, result = Path(folder, "log"), Path(folder, "result.json")
        with log.open("wb") as output:
            process = subprocess.Popen(
                (tree.python, "-P", against_drivers.__file__, name, result),
                cwd=tree.folder,
                env=quiet_environment() | {"TMPDIR": folder, "ROLLCAST_AGAINST_PYTHON": str(python)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise NotMeasurableError(f"not measurable in {tree.name}: took longer than {limit_s:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if result.exists():
            return dict(json.loads(result.read_text(encoding="utf-8")))
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = said[-1] if said else f"ended with exit code {process.returncode}"
        raise NotMeasurableError(f"not measurable in {tree.name}: {reason}")


def quiet_environment() -> dict[str, str]:
    """Returns this environment without settings of rollcast and of Python, and with one thread for linear algebra."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLCAST_", "PYTHON"))}
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GRPC_VERBOSITY": "ERROR"}


def compare(
    names: Sequence[str],
    measure_this: Callable[[str], Costs],
    measure_other: Callable[[str], Costs],
    may_begin: Callable[[float], bool],
) -> dict[str, Comparison]:
    """Measures both trees in turns, round after round, for as long as there is time.

    Args:
        names: The things to measure.
        measure_this: Measures one of them in this tree.
        measure_other: Measures one of them in the other tree.
        may_begin: Says whether there is time for another pair of measurements, of as many seconds as the longest.
    """
    found = {name: Comparison() for name in names}
    sides = ((0, measure_this), (1, measure_other))
    longest_s, turn = 0.0, 0
    while waiting := [name for name in names if not found[name].reason]:
        for name in waiting:
            if not may_begin(longest_s):
                return found
            began = time.monotonic()
            costs: dict[int, Costs] = {}
            try:
                for side, measure_side in sides if turn % 2 == 0 else reversed(sides):
                    costs[side] = measure_side(name)
            except NotMeasurableError as error:
                found[name].reason = str(error)
            else:
                found[name].rounds.append((costs[0], costs[1]))
            longest_s = max(longest_s, time.monotonic() - began)
        turn += 1
    return found


def rows(found: Mapping[str, Comparison]) -> Iterator[tuple[str | Figure, ...]]:
    """Yields what was measured, both medians, the ratios, and the number of rounds."""
    for name, comparison in found.items():
        n_rounds = len(comparison.rounds)
        if comparison.reason or not n_rounds:
            yield name, "", "", comparison.reason or "not measured: no time was left", ""
        for what in comparison.rounds[0][0] if n_rounds else ():
            ours, theirs = ([costs[side][what] for costs in comparison.rounds] for side in (0, 1))
            yield what, processor_time(ours), processor_time(theirs), ratio(ours, theirs), str(n_rounds)


def processor_time(seconds: Sequence[float]) -> Figure:
    """Returns times in the unit that suits them, with three digits."""
    middle = statistics.median(seconds)
    unit, scale = ("s", 1.0) if middle >= 1 else ("ms", 1e3) if middle >= 1e-3 else ("us", 1e6)
    return Figure(seconds, ".3g", unit, scale)


def run(repository: Path, commit: str | None, *, quick: bool, minutes: float, only: str) -> None:
    """Compares the files of a repository with one of its commits, and prints the table.

    Raises:
        AgainstError: It cannot be done.
    """
    began = time.monotonic()
    names = [name for name in DRIVERS if only in name and not (quick and name in _NOT_QUICK)]
    load = os.getloadavg()[0]
    found_commit = resolve(repository, commit)
    with tempfile.TemporaryDirectory(prefix="rollcast-against-") as folder:
        there = Path(folder, "there")
        short = git(repository, "rev-parse", "--short", found_commit)
        unpack(repository, found_commit, there)
        other = make_runnable(short, there, Path(folder, "environment-there"))
        this = make_runnable(described(repository), repository, Path(folder, "environment-here"))
        limit_s = 60 * minutes / 2  # one that hangs leaves time for others
        found = compare(
            names,
            lambda name: measure(this, name, this.python, limit_s),
            lambda name: measure(other, name, this.python, limit_s),
            lambda longest_s: time.monotonic() - began + longest_s < 60 * minutes,
        )
    print(f"\nThis tree ({this.name}) beside {other.name}: processor time, and its ratio, median (all rounds).")
    print(f"Below 1 this tree takes less. Load {load:.0f} before and {os.getloadavg()[0]:.0f} after.\n")
    print_table(("what", "this tree", other.name, "ratio", "rounds"), list(rows(found)))
    if not any(comparison.rounds for comparison in found.values()):
        raise AgainstError("nothing could be measured, for the reasons in the table")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="a hash, a tag or a branch")
    parser.add_argument("--quick", action="store_true", help="three minutes in all, and ingest of one size alone")
    parser.add_argument("--minutes", type=float, help="minutes in all; by default 15")
    parser.add_argument("--only", default="", help="measure only what has this in its name")
    options = parser.parse_args()

    def end(_signal: int, _frame: object) -> NoReturn:
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)  # so that the temporary folder goes, as after Ctrl-C
    minutes = options.minutes or (3.0 if options.quick else 15.0)
    try:
        run(ROOT, options.commit, quick=options.quick, minutes=minutes, only=options.only)
    except AgainstError as error:
        sys.exit(f"bench-against: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
