"""`pip install rollcast` without extras, in an environment of its own: an actor with an MLP needs no more."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.status.status import ActorState
from tests.packages import bare_environment, build, install
from tests.processes import DEADLINE_S, SOURCE_ROOTS, ended, free_port, running, status_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IMAGES = """
import gymnasium
import numpy as np

class Images(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((36, 36, 1), np.uint8), {}

    def step(self, action):
        return np.zeros((36, 36, 1), np.uint8), 1.0, False, True, {}
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an environment that holds it: one for all the processes that share these tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "plain"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # until the file is closed
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            # pip takes as long as all of the tests; after a failure the next process tries again
            for left in (folder / "wheel", folder / "venv"):
                shutil.rmtree(left, ignore_errors=True)
            (folder / "wheel").mkdir()
            install(build("wheel", folder / "wheel"), folder / "venv")
            (folder / "installed").touch()
    return folder


@pytest.fixture(scope="module")
def wheel(shared: Path) -> Path:
    (file,) = (shared / "wheel").iterdir()
    return file


@pytest.fixture(scope="module")
def programs(shared: Path) -> Path:
    """The programs of an environment that holds the wheel and what it requires."""
    return shared / "venv" / "bin"


def run(program: Path, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [str(program), *map(str, arguments)]
    return subprocess.run(
        command, **{"env": bare_environment(), "capture_output": True, "text": True, "timeout": DEADLINE_S, **options}
    )


@contextlib.contextmanager
def plain_actor(programs: Path, address: str, *options: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """An actor of the plain installation."""
    command = [programs / "rollcast", "actor", "--learner-address", address, *map(str, options)]
    with subprocess.Popen(
        command, env=bare_environment() | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class TestContents:
    def test_wheel_has_one_folder(self, programs: Path):
        listing = "from importlib import metadata; print(*metadata.files('rollcast'), sep='\\n')"
        files = [Path(line) for line in run(programs / "python", "-c", listing).stdout.splitlines()]
        version = run(programs / "rollcast", "--version").stdout.split()[1]
        inside = {path.parts[0] for path in files if path.parts[0] != ".."}
        assert inside == {"rollcast", f"rollcast-{version}.dist-info"}
        assert {path.name for path in files if path.parts[0] == ".."} == {"rollcast"}, "and the command"

    def test_installs_no_package_of_the_learner(self, programs: Path):
        search = "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if u.find_spec(n)]))"
        modules = ("numpy", "torch", "tensorboard", "rich", "cryptography", "grpc_reflection", "docker", "pettingzoo")
        assert json.loads(run(programs / "python", "-c", search, *modules).stdout) == ["numpy"]

    def test_actor_modules_import_without_extras_but_those_that_are_made_of_one(self, programs: Path):
        walk = """
import importlib, json, pkgutil, rollcast.actor, rollcast.services
missing = {}
for package in (rollcast.services, rollcast.actor):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                missing[module.name] = error.name
print(json.dumps(missing))
"""
        done = run(programs / "python", "-c", walk)
        assert done.returncode == 0, done.stderr
        missing = json.loads(done.stdout)
        allowed = {
            "torch": ("rollcast.actor.policies.", "rollcast.actor.workers.on_device"),
            "onnx": ("rollcast.actor.exporting.",),
            "websockets": ("rollcast.services.server.environment_sockets",),
            "stable_baselines3": ("rollcast.actor.dialling.sb3_vec_env",),
        }
        assert set(missing.values()) == set(allowed)
        assert all(module.startswith(allowed[package]) for module, package in missing.items())

    @pytest.mark.parametrize(
        ("package", "name", "extra"), [("actor", "TorchPolicy", "torch"), ("learner", "Impala", "learner")]
    )
    def test_import_error_of_public_name_names_the_extra(self, programs: Path, wheel: Path, package, name, extra):
        done = run(programs / "python", "-c", f"from rollcast.{package} import {name}")
        assert done.stderr.endswith(
            f"ModuleNotFoundError: rollcast.{package}.{name} needs torch, which this Python does not have; expected "
            f"the extra '{extra}'; install it: {programs / 'pip'} install 'rollcast[{extra}] @ {wheel.as_uri()}'\n"
        )


class TestActor:
    def test_learner_trains_with_actor_without_torch(self, programs, tmp_path):
        """By SAC, whose actors compute most; `make light-3.12` has all policies without torch."""
        address = f"127.0.0.1:{free_port()}"
        env = ("--env-id", "Pendulum-v1")
        learner = ("learner", "learner", "--address", address, "--run-dir", tmp_path, *env, "--algorithm", "sac")
        # an update for many steps: the processes that ask have the other core
        options = ("--stop-return", 1e9, "--hidden-sizes", 16, "--replay.samples-per-insert", 8)
        with (
            running(*learner, *options) as learning,
            plain_actor(programs, address, *env) as actor,
            LearnerClient(address) as client,
        ):
            wait_until(lambda: status_of(client).updates > 20, "updates")
            version = client.status().policy_version
            wait_until(lambda: client.actors()[0].policy_version > version, "rollouts with a newer policy")
            assert actor.poll() is None
            told = run(programs / "rollcast", "status", "--address", address, "--actors").stdout
            assert re.search(r"^phase +training$", told, re.MULTILINE)
            assert re.search(r"^0 .* streaming ", told, re.MULTILINE)
            assert run(programs / "rollcast", "doctor", "--address", address).stdout.startswith("training, ")
            client.stop()
            ended(actor)
            # it writes the last policy
            ended(learning)
        figures = run(programs / "rollcast", "evaluate", tmp_path, "--n-episodes", 1)
        assert figures.returncode == 0, figures.stderr
        assert figures.stdout.startswith("policy ")

    def test_actor_without_torch_rejects_cnn_with_install_command(self, programs, wheel, tmp_path):
        (tmp_path / "images.py").write_text(IMAGES)
        address = f"127.0.0.1:{free_port()}"
        learner = ("learner", "learner", "--address", address, "--run-dir", tmp_path / "run")
        search_path = os.pathsep.join(map(str, (tmp_path, *SOURCE_ROOTS)))
        with (
            running(*learner, "--env-id", "images:Images", PYTHONPATH=search_path),
            plain_actor(programs, address, "--env-id", "images:Images", PYTHONPATH=str(tmp_path)) as actor,
            LearnerClient(address) as client,
        ):
            said, _ = actor.communicate(timeout=DEADLINE_S)
            assert actor.returncode == 2, said
            told = (
                "the CNN for images needs torch, which this Python does not have; expected the extra 'torch'; "
                f"install it: {programs / 'pip'} install 'rollcast[torch] @ {wheel.as_uri()}'"
            )
            assert told in said
            wait_until(lambda: client.actors()[0].state is ActorState.FAILED, "the learner to hear of it")
            assert told in client.actors()[0].last_error


class TestCommands:
    def test_help_needs_no_extra(self, programs: Path):
        assert run(programs / "rollcast", "--help").stdout.startswith("usage: rollcast COMMAND")
        asked = """
import sys
from rollcast.tools.cli import main
for command in sys.argv[1:]:
    try:
        main([command, "--help"])
    except SystemExit as ended:
        assert not ended.code
"""
        commands = ("train", "learner", "actor", "status", "top", "doctor", "evaluate", "record", "certs", "completion")
        done = run(programs / "python", "-c", asked, *commands)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.findall(r"^usage: rollcast (\w+)", done.stdout, re.MULTILINE) == list(commands)

    def test_a_command_without_its_extra_prints_the_install_command(self, programs, wheel, tmp_path):
        of_learner = "torch, rich, tensorboard, grpc_reflection, cryptography"
        modules = {
            "train": of_learner,
            "learner --address localhost:0": of_learner,
            "replay serve": of_learner,
            "relay": "grpc_reflection",
            "scaler": "grpc_reflection",
            "certs somewhere": "cryptography",
        }
        asked = """
import sys
from rollcast.tools.cli import main
for command in sys.argv[1:]:
    assert main(command.split()) == 2
"""
        done = run(programs / "python", "-c", asked, *modules, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.splitlines() == [
            f"rollcast {command.split()[0]}: this command needs {missing}, which this Python does not have; expected "
            f"the extra 'learner'; install it: {programs / 'pip'} install 'rollcast[learner] @ {wheel.as_uri()}'"
            for command, missing in modules.items()
        ]
        assert list(tmp_path.iterdir()) == [], "nothing is begun"
