"""`make bench-against`: turns, ratios, the commit that is meant, and commits that cannot be measured."""

import ast
import importlib
import inspect
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks import against, against_drivers, ingest
from benchmarks.against import AgainstError, Comparison, Costs, NotMeasurableError
from tests.processes import ROOT, wait_until

GIT = ("git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
PROJECT = """
[project]
name = "rollcast"
dependencies = [{dependencies}]
[project.scripts]
rollcast = "command:main"
[tool.hatch.build]
dev-mode-dirs = ["source"]
"""
# Two rollouts in each call, and no actors.
INGEST = """
class LOAD:
    name = "64 KiB"
    n_envs = 1
LOADS = [LOAD]
N_ACTORS = 0
class Learner:
    address = ""
    def __init__(self, load): {made}
    def wait_for_actors(self): pass
    def consume(self, seconds): return 2
"""


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run((*GIT, *arguments), cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, dependencies: str = "", command: str = "def main(): pass", made: str = "pass") -> str:
    """Commits a project so small that only its ingest can be measured."""
    files = {
        "pyproject.toml": PROJECT.format(dependencies=dependencies),
        "source/command.py": command,
        "benchmarks/__init__.py": "",
        "benchmarks/ingest.py": INGEST.format(made=made),
        "benchmarks/BASELINE": "HEAD\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a commit")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which must be empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


def pairs(n: int):
    """Has time for so many pairs of measurements."""
    left = iter(range(n))
    return lambda _longest_s: next(left, None) is not None


def test_the_tree_that_begins_changes_with_each_round():
    calls: list[str] = []

    def side(name: str, seconds: float):
        return lambda what: calls.append(f"{name} {what}") or {what: seconds}

    found = against.compare(["x", "y"], side("this", 1.0), side("other", 2.0), pairs(5))
    assert calls == [
        *("this x", "other x", "this y", "other y"),
        *("other x", "this x", "other y", "this y"),
        *("this x", "other x"),
    ]
    assert {name: comparison.rounds for name, comparison in found.items()} == {
        name: [({name: 1.0}, {name: 2.0})] * n_rounds for name, n_rounds in (("x", 3), ("y", 2))
    }, "this tree first, whichever began"


def test_what_cannot_be_measured_in_one_tree_says_why_and_is_not_tried_again():
    tried: list[str] = []

    def other(name: str) -> Costs:
        tried.append(name)
        if name == "x":
            raise NotMeasurableError("not measurable in abc: no such name")
        return {name: 1.0}

    found = against.compare(["x", "y"], lambda name: {name: 1.0}, other, pairs(4))
    assert tried == ["x", "y", "y", "y"]
    assert next(against.rows(found)) == ("x", "", "", "not measurable in abc: no such name", "")


def test_it_ends_when_nothing_can_be_measured():
    def fails(_name: str) -> Costs:
        raise NotMeasurableError("no")

    found = against.compare(["x"], fails, fails, lambda _longest_s: True)
    assert not found["x"].rounds


def test_rows_have_medians_and_the_ratios_of_rounds():
    rounds = [({"a": 1e-6, "b": 4.0}, {"a": 2e-6, "b": 1.0}), ({"a": 3e-6, "b": 2.0}, {"a": 2e-6, "b": 1.0})]
    rounds.append(({"a": 2e-6, "b": 3.0}, {"a": 8e-6, "b": 1.0}))
    found = {"first": Comparison(rounds=rounds), "second": Comparison()}
    assert [tuple(map(str, row)) for row in against.rows(found)] == [
        ("a", "2 us", "2 us", "0.50 (0.25 to 1.50)", "3"),
        ("b", "3 s", "1 s", "3.00 (2.00 to 4.00)", "3"),
        ("second", "", "", "not measured: no time was left", ""),
    ]


@pytest.mark.parametrize(("seconds", "words"), [(2.345, "2.35 s"), (0.0123, "12.3 ms"), (4.5e-7, "0.45 us")])
def test_times_have_three_digits_and_a_unit(seconds: float, words: str):
    assert str(against.processor_time([seconds])) == words


def test_without_a_name_it_is_the_newest_tag_before_and_else_the_baseline(repository: Path):
    first = git(repository, "rev-parse", "HEAD")
    assert against.resolve(repository, None) == first  # BASELINE
    git(repository, "tag", "v1")
    second = commit(repository)
    git(repository, "tag", "v2")
    assert against.resolve(repository, None) == first
    commit(repository)
    assert against.resolve(repository, None) == second
    assert against.resolve(repository, "v1") == first


def test_the_baseline_is_a_commit_of_this_repository():
    name = (ROOT / against.BASELINE).read_text().strip()
    if git(ROOT, "rev-parse", "--is-shallow-repository") == "false":
        assert against.resolve(ROOT, name).startswith(name)


@pytest.mark.parametrize("name", ["no-such-commit", "--output=x", "HEAD:source"])
def test_a_commit_that_is_not_there_is_named(repository: Path, name: str):
    with pytest.raises(AgainstError, match=rf"there is no commit {name!r} in .*; expected a hash, a tag or a branch"):
        against.resolve(repository, name)


def test_a_folder_that_is_no_clone_is_named(tmp_path: Path):
    with pytest.raises(AgainstError, match=r"(?s)failed:\n.*not a git repository.*must be a clone"):
        against.resolve(tmp_path, "HEAD")


def test_changes_that_are_not_committed_are_measured_and_named(repository: Path):
    head = git(repository, "rev-parse", "--short", "HEAD")
    assert against.described(repository) == head
    (repository / "source" / "new.py").write_text("")
    assert against.described(repository) == f"{head} with changes that are not committed"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"command": "import no_such_module"}, r"(?s)cannot be imported:\n.*No module named 'no_such_module'"),
        ({"command": "def main(:"}, r"(?s)does not compile:\n.*SyntaxError"),
        ({"dependencies": "'no-such-package>=3'"}, r"(?s)cannot be built:\n.*no-such-package>=3"),
    ],
)
def test_a_commit_that_cannot_run_is_one_error_with_its_last_lines(
    repository: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, spoilt: dict[str, str], message: str
):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    broken = commit(repository, **spoilt)
    commit(repository)
    with pytest.raises(AgainstError, match=message) as failed:
        against.run(repository, broken, quick=True, minutes=1.0, only="")
    assert str(failed.value).startswith(broken[:7])
    assert "choose another, or mend this one" in str(failed.value)


def test_a_commit_of_another_project_is_one_error(repository: Path, temporary: Path):
    git(repository, "rm", "--quiet", "pyproject.toml")
    git(repository, "commit", "--quiet", "--message", "another project")
    with pytest.raises(
        AgainstError, match=r"cannot be built: its pyproject.toml does not say .* commit of this project"
    ):
        against.run(repository, "HEAD", quick=True, minutes=1.0, only="")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_commit_gets_what_is_not_installed_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with zipfile.ZipFile(tmp_path / "only_there-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("only_there.py", "")
        wheel.writestr("only_there-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: only-there\nVersion: 1.0\n")
        wheel.writestr(
            "only_there-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("only_there-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = tmp_path / "tree"
    (folder / "source").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(dependencies="'only-there', 'numpy'"))
    (folder / "source" / "command.py").write_text("import only_there, numpy\ndef main(): pass")
    tree = against.make_runnable("abc", folder, tmp_path / "environment")
    where = "import only_there, numpy; print(only_there.__file__, numpy.__file__)"
    theirs, shared = subprocess.check_output((tree.python, "-c", where), text=True).split()
    assert Path(theirs).is_relative_to(tmp_path)
    assert not Path(shared).is_relative_to(tmp_path)
    assert importlib.util.find_spec("only_there") is None


def test_requirements_are_those_of_a_learner_on_this_machine():
    project = {
        "name": "rollcast",
        "dependencies": ["a>=1", "b; sys_platform == 'nowhere'"],
        "optional-dependencies": {"learner": ["rollcast[torch]", "c"], "torch": ["d<2"], "docs": ["e"]},
    }
    assert sorted(map(str, against.requirements(project))) == ["a>=1", "c", "d<2"]


@pytest.mark.slow
def test_a_tree_is_measured_with_its_own_files(repository: Path, temporary: Path):
    tree = against.make_runnable("abc", repository, repository.parent / "environment")
    costs = against.measure(tree, "ingest of 64 KiB", tree.python, 60.0)
    assert set(costs) == {"ingest, 64 KiB, learner: a rollout", "ingest, 64 KiB, actors: a rollout"}


@pytest.mark.slow
def test_if_nothing_can_be_measured_the_table_says_why_and_it_fails(repository: Path, temporary: Path, capsys):
    with pytest.raises(AgainstError, match="nothing could be measured"):
        against.run(repository, "HEAD", quick=True, minutes=1.0, only="acting")
    table = capsys.readouterr().out
    assert "| not measurable in " in table
    assert "ModuleNotFoundError: No module named 'rollcast" in table


@pytest.mark.slow
def test_one_that_hangs_is_ended(repository: Path, temporary: Path):
    commit(repository, made="import threading; threading.Event().wait()")
    tree = against.make_runnable("abc", repository, repository.parent / "environment")
    with pytest.raises(NotMeasurableError, match=r"not measurable in abc: took longer than 1 s"):
        against.measure(tree, "ingest of 64 KiB", tree.python, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal_it_leaves_no_file_and_no_process(repository: Path, temporary: Path, sent: signal.Signals):
    reached = repository.parent / "reached"
    commit(repository, made=f"import threading; open({str(reached)!r}, 'w').close(); threading.Event().wait()")
    program = f"import pathlib, benchmarks.against as a; a.ROOT = pathlib.Path({str(repository)!r}); a.main()"
    command = (sys.executable, "-c", program, "HEAD", "--only", "64 KiB")
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(temporary)}) as process:
        wait_until(reached.exists, "a measurement", 60)
        (driver,) = psutil.Process(process.pid).children()
        process.send_signal(sent)
        assert process.wait(60) == 128 + sent
    wait_until(lambda: not driver.is_running(), "the measurement's end")


def test_drivers_use_only_public_names_and_what_every_tree_has():
    imported = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(Path(against_drivers.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    ours = {(module, name) for module, name in imported if module.startswith(("rollcast", "benchmarks"))}
    for module, name in ours - {("benchmarks", "ingest")}:
        assert module in ("rollcast.actor", "rollcast.learner", "rollcast.services")
        assert name in importlib.import_module(module).__all__
    assert {"64 KiB", "1 MiB"} <= {load.name for load in ingest.LOADS}
    inspect.signature(ingest.Learner).bind(ingest.LOADS[0])
    inspect.signature(ingest.synthetic_actor).bind(0, ingest.LOADS[0], "address", object())
    assert ingest.N_ACTORS


@pytest.mark.parametrize("arguments", [("8f0", "ARGS=--quick"), ("COMMIT=8f0", "ARGS=--quick")])
def test_make_takes_the_commit_as_a_target_or_as_a_variable(arguments: tuple[str, ...]):
    shown = subprocess.check_output(("make", "-n", "bench-against", *arguments), cwd=ROOT, text=True)
    assert "-m benchmarks.against --quick 8f0\n" in shown
