"""`.ci/run` on machines that lack something, and what it records. `make` and the programs it asks for are made up."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.processes import ROOT

# The programs that the script itself uses, and git.
TOOLS = ("df", "dirname", "git", "id", "mkdir", "mktemp", "rm", "tail", "timeout")
BASH = shutil.which("bash")
MAKE = 'echo "make $*: lacks$CI_LACKS, CI=$CI"'


class Machine:
    """A clone of a repository with `.ci/run` and nothing else, on a machine that has the programs it is given."""

    def __init__(self, folder: Path) -> None:
        self.clone, self._programs = folder / "clone", folder / "bin"
        self._programs.mkdir()
        for tool in TOOLS:
            # not as a link: a test that puts its own program here would overwrite the one of this machine
            self.has(tool, f'exec {shutil.which(tool)} "$@"')
        self.has("make", MAKE)
        (self.clone / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "run", self.clone / ".ci")
        (self.clone / ".gitignore").write_text("build/\n")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message=first")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(
            ["git", *identity, *arguments], cwd=self.clone, check=True, capture_output=True, text=True
        ).stdout.strip()

    def has(self, program: str, script: str = "") -> None:
        """Puts a program on this machine."""
        _write_script(self._programs / program, script)

    def shares(self, script: str, text: str) -> None:
        """Puts a script into ../shared."""
        file = self.clone.parent / "shared" / script
        file.parent.mkdir(parents=True)
        _write_script(file, text)

    def ci(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `.ci/run`."""
        return subprocess.run(
            [BASH, ".ci/run"],
            cwd=self.clone,
            env={"PATH": str(self._programs), "HOME": str(self.clone)} | variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def passed(self) -> str | None:
        """The commit that `.ci/run` has recorded."""
        file = self.clone / ".git" / "ci-passed"
        return file.read_text().strip() if file.exists() else None


def _write_script(file: Path, text: str) -> None:
    file.write_text(f"#!{BASH}\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def whole(machine: Machine) -> Machine:
    """A machine of root's that has everything."""
    for program in ("docker", "docker-compose", "sinfo", "kubectl", "chromium", "promtool", "node", "npm"):
        machine.has(program)
    for program in ("grpc_cpp_plugin", "g++", "pkg-config", "perl"):
        machine.has(program)
    machine.has("id", "echo 0")
    return machine


def test_alone_a_machine_without_anything_runs_the_tests_and_names_what_it_lacks(machine):
    machine.has("id", "echo 1000")
    done = machine.ci()
    assert done.returncode == 0
    assert "make test: lacks docker slurm kubectl chromium promtool grpc++ node npm perl, CI=true" in done.stdout
    for name, reason in {
        "docker": "docker: command not found",
        "slurm": "a test kills nodes of the cluster, which needs root",
        "kubectl": "pip could not download it",
        "chromium": "apt-get could not install it",
        "promtool": "apt-get could not download it",
        "grpc++": "apt-get could not install it",
        "node": "it is not installed",
    }.items():
        (line,) = (line for line in done.stderr.splitlines() if line.startswith(f".ci/run: no {name},"))
        assert "are skipped" in line
        assert reason in line


def test_alone_a_machine_with_everything_lacks_nothing(whole):
    assert "make test: lacks, CI=true" in whole.ci().stdout


def test_an_engine_that_refuses_this_user_is_lacking(whole):
    whole.has("docker", "echo permission denied; exit 1")
    done = whole.ci()
    assert "make test: lacks docker, CI=true" in done.stdout
    assert "permission denied" in done.stderr


def test_beside_shared_root_starts_what_is_missing_and_ends_the_cluster(whole):
    whole.has("docker", "exit 1")
    whole.has("sinfo", "exit 1")
    whole.shares("docker/engine-up", "echo engine-up")
    whole.shares("slurm/cluster-up", 'echo "cluster-up $*"')
    printed = whole.ci().stdout.splitlines()
    assert printed == ["engine-up", "cluster-up ", "make test: lacks, CI=true", "cluster-up down"]


def test_beside_shared_nothing_is_skipped_that_root_could_not_start(whole):
    whole.has("docker", "exit 1")
    whole.shares("docker/engine-up", "exit 1")
    done = whole.ci()
    assert "make test: lacks, CI=true" in done.stdout
    assert ".ci/run: no docker, and the tests that need it fail: engine-up failed" in done.stderr


def test_records_the_commit_that_passed(whole):
    whole.ci()
    assert whole.passed == whole.git("rev-parse", "HEAD")


@pytest.mark.parametrize("make", ["exit 1", ": >new"], ids=["a failure", "a file that the run leaves"])
def test_records_nothing_after(whole, make):
    whole.has("make", make)
    assert whole.ci().returncode == int(make == "exit 1")
    assert whole.passed is None


def test_records_nothing_for_a_changed_tree(whole):
    (whole.clone / "new").touch()
    assert whole.ci().returncode == 0
    assert whole.passed is None


@pytest.mark.parametrize("part", [{"PYTEST_ARGS": "-k vtrace"}, {"STAGES": "unit"}], ids=["tests", "stages"])
def test_records_nothing_for_a_part(whole, part):
    assert whole.ci(**part).returncode == 0
    assert whole.passed is None


def test_a_full_disk_is_named_before_anything_begins(whole):
    whole.has("df", "echo Avail; echo 12")
    done = whole.ci()
    assert done.returncode == 1
    assert done.stderr == (
        f".ci/run: {whole.clone} has 12 MiB free; expected 4096; make room, or set TMPDIR for temporary files\n"
    )
    assert done.stdout == ""


def test_a_python_that_is_missing_is_skipped_by_name(tmp_path):
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    done = subprocess.run(
        ["bash", ".ci/light", "3.99", "pip"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    reason = "no Python 3.99 here: neither python3.99 on the PATH, nor one of pyenv's\n"
    assert (done.returncode, done.stdout) == (0, reason)
    assert (tmp_path / "build/tests/light-3.99.skipped").read_text() == reason
