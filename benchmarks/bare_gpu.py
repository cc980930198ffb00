"""Fetches what a GPU machine without network lacks to run everything of `make gpu`: wheels, to be carried there.

    python -m benchmarks.bare_gpu --python 3.12       here: puts wheels for that Python into build/wheels
    bash benchmarks/gpu.sh                            there, in a copy of this folder

Expected there: a `python3` whose torch is for its GPU, with numpy, tensorboard, rich and their like beside it. The
wheels have the versions that are installed here, and take precedence over the packages there.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Set
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
# Packages that the tests marked `gpu` and the benchmarks import beside torch, and those that they come with.
WANTED: Final = (
    "cryptography",
    "grpcio",
    "grpcio-health-checking",
    "grpcio-reflection",
    "grpcio-status",
    "gymnasium",
    "hypothesis",
    "prometheus-client",
    "psutil",
    "pydantic-settings",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "pyyaml",
    "safetensors",
    "threadpoolctl",
    "xxhash",
    "zstandard",
)
# Large, and beside every torch.
THERE: Final = frozenset({"numpy", "setuptools", "torch"})
# Newer ones cannot be named: a wheel says the oldest glibc that it runs with, and pip wants each spelled out.
_PLATFORMS: Final = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")


def main() -> int:
    """Fetches the wheels; returns pip's exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare_gpu", description="Wheels for a GPU machine.")
    parser.add_argument("--python", default="3.12", help="the version of Python there")
    parser.add_argument("--machine", default="x86_64", help="the kind of processor there")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "wheels", help="the folder for the wheels")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for wheel in options.folder.glob("*.whl"):
        wheel.unlink()
    platforms = [part for name in _PLATFORMS for part in ("--platform", f"{name}_{options.machine}")]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
        *("--python-version", options.python, "--implementation", "cp", *platforms, "--dest", str(options.folder)),
        *requirements(WANTED),
    ]
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        n_bytes = sum(wheel.stat().st_size for wheel in options.folder.glob("*.whl"))
        print(f"{n_bytes / 2**20:.0f} MiB in {options.folder}; there: bash benchmarks/gpu.sh")
    return code


def requirements(names: Iterable[str], there: Set[str] = THERE) -> list[str]:
    """Returns the packages of these names and all that they need but what is there, as `NAME==VERSION`, as here."""
    found: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = _normal(waiting.pop())
        if name in found or name in there:
            continue
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # it is for another platform, or an older Python
            continue
        for line in metadata.requires(name) or ():
            needed, _, condition = line.partition(";")
            if "extra ==" not in condition:
                waiting.append(re.split(r"[\s<>=!~\[(]", needed.strip(), maxsplit=1)[0])
    return sorted(f"{name}=={version}" for name, version in found.items())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
