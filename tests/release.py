"""Checks that this tree can be released: `make release-check`. docs/development/releases.md says what for."""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

from tests.packages import bare_environment, build
from tests.processes import ROOT

RELEASE = ROOT / "build" / "release"
CONSTRAINTS = ROOT / "constraints.txt"
RENDERER = "readme-renderer[md]==46.0"
# Markdown's and HTML's, to anything but another site, an anchor of the page, or a mail address.
_RELATIVE = re.compile(r"""(?:\]\(|(?:href|src|srcset)=["'])(?![a-z]+:|#)([^)"'\s]+)""")
_STEP_TIMEOUT_S = 900.0


class NotReleasableError(Exception):
    """The tree cannot be released."""


def check_changelog(version: str, changelog: str) -> None:
    """Compares a version with the sections of the changelog.

    Raises:
        NotReleasableError: A release has no section with a date, a version on the way to one has a section, or
            "Unreleased" is not the first.
    """
    sections = re.findall(r"^## \[([^\]]+)\](.*)$", changelog, re.MULTILINE)
    if not sections or sections[0] != ("Unreleased", ""):
        raise NotReleasableError('CHANGELOG.md does not begin with "## [Unreleased]"; put it first, empty if need be')
    released = {name for name, date in sections[1:] if re.fullmatch(r" - \d{4}-\d\d-\d\d", date)}
    if undated := {name for name, _ in sections[1:]} - released:
        raise NotReleasableError(f"CHANGELOG.md has no date for {', '.join(sorted(undated))}; expected [x.y.z] - DATE")
    if ".dev" in version:
        if version.partition(".dev")[0] in released:
            raise NotReleasableError(
                f"CHANGELOG.md has released {version.partition('.dev')[0]}, and pyproject.toml is on the way to it "
                f"with {version}; raise the version"
            )
    elif version not in released:
        raise NotReleasableError(
            f'CHANGELOG.md has no section "## [{version}] - DATE"; '
            "expected one for the version of pyproject.toml; add it"
        )


def relative_links(readme: str) -> list[str]:
    """Returns the links that lead nowhere on the page of an index."""
    return _RELATIVE.findall(readme)


def description_of(wheel: Path) -> str:
    """Returns the README in a wheel's metadata."""
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return str(HeaderParser().parsestr(archive.read(name).decode()).get_payload())


def main() -> int:
    """Runs all checks; returns the exit code."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    try:
        check_changelog(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="rollcast-release-") as folder:
            wheel = _built(Path(folder))
            _check_light(wheel, Path(folder) / "light", version)
            _check_full(wheel, Path(folder) / "full")
            _check_readme(wheel, Path(folder))
    except NotReleasableError as error:
        sys.stderr.write(f"release-check: {error}\n")
        return 1
    sys.stdout.write(f"release-check: rollcast {version} can be released: {RELEASE.relative_to(ROOT)}\n")
    return 0


def _built(folder: Path) -> Path:
    """Builds the source distribution, and the wheel from it; leaves both in build/release."""
    (folder / "sdist").mkdir()
    (folder / "wheel").mkdir()
    sdist = build("sdist", folder / "sdist")
    _run(["tar", "-xf", sdist, "-C", folder], "the source distribution cannot be unpacked")
    (sources,) = folder.glob("rollcast-*")
    wheel = build("wheel", folder / "wheel", sources)
    RELEASE.mkdir(parents=True, exist_ok=True)
    for old in RELEASE.iterdir():
        old.unlink()
    for file in (sdist, wheel):
        (RELEASE / file.name).write_bytes(file.read_bytes())
    return wheel


def _check_light(wheel: Path, folder: Path, version: str) -> None:
    programs = _installed(folder, str(wheel))
    said = _run([programs / "rollcast", "--version"], "rollcast --version fails without extras", folder)
    if said.strip() != f"rollcast {version}":
        raise NotReleasableError(f"rollcast --version says {said.strip()!r}; expected 'rollcast {version}'")
    _run([programs / "python", "-c", "import rollcast.actor, rollcast.services"], "imports fail without extras", folder)


def _check_full(wheel: Path, folder: Path) -> None:
    # torch alone and first, as in the Makefile: no other package has a say in which torch it is
    programs = _installed(folder, "torch")
    _run(
        [programs / "pip", "install", "--quiet", "-c", CONSTRAINTS, f"{wheel}[learner]"],
        "rollcast[learner] is not installed",
    )
    run = ["--env-id", "CartPole-v1", "--algorithm", "impala", "--total-steps", "2000", "--run-dir", "run"]
    _run([programs / "rollcast", "train", *run, "--stop-return", "1e9"], "rollcast train fails", folder)
    _run([programs / "rollcast", "evaluate", "run", "--n-episodes", "1"], "rollcast evaluate fails", folder)


def _check_readme(wheel: Path, folder: Path) -> None:
    """Renders the README as an index does, and looks for links that lead nowhere there."""
    if links := relative_links(description_of(wheel)):
        raise NotReleasableError(f"the README in the wheel has relative links: {', '.join(links)}; see pyproject.toml")
    programs = _installed(folder / "renderer", RENDERER, constraints=False)
    (folder / "README.md").write_text(description_of(wheel), encoding="utf-8")
    program = (
        "import pathlib, sys; from readme_renderer import markdown; "
        "page = markdown.render(pathlib.Path('README.md').read_text(encoding='utf-8')); sys.exit(not page)"
    )
    _run([programs / "python", "-c", program], "the README is not rendered", folder)


def _installed(folder: Path, requirement: str, *, constraints: bool = True) -> Path:
    """Makes an empty environment with a requirement in it; returns the folder of its programs."""
    _run([sys.executable, "-m", "venv", folder], "no environment can be made")
    pinned = ["-c", CONSTRAINTS] if constraints else []
    _run([folder / "bin" / "pip", "install", "--quiet", *pinned, requirement], f"{requirement} is not installed")
    return folder / "bin"


def _run(command: Sequence[str | Path], otherwise: str, cwd: Path | None = None) -> str:
    """Runs a command outside of the checkout; returns its output.

    Raises:
        NotReleasableError: It fails or takes too long.
    """
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=_STEP_TIMEOUT_S,
            cwd=cwd or Path(tempfile.gettempdir()),
            env=bare_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise NotReleasableError(f"{otherwise}: no end within {_STEP_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise NotReleasableError(f"{otherwise}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
