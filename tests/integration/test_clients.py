"""The clients of clients/: each plays CartPole at a scripted server, and all pass the same scenarios."""

import asyncio
import contextlib
import fcntl
import functools
import http.server
import json
import math
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import google.protobuf
import grpc
import gymnasium
import numpy as np
import pytest
import typing_extensions
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from rollcast.actor import RemoteVecEnv, load_policy
from rollcast.services.spaces.codec import environment_spaces_from_proto
from rollcast.v1 import environment_pb2 as api
from tests.browser import chromium
from tests.documents import blocks
from tests.environment_server import Script, ScriptedServer, Stream
from tests.needs import lacks
from tests.node import NODE, node_with_packages
from tests.processes import DEADLINE_S, ROOT, ended, environment, free_port, running

# the first of them builds the client in C++, which takes a minute of a free machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUNNING, TERMINATED = api.AGENT_STATE_RUNNING, api.AGENT_STATE_TERMINATED
FALLEN = 12 * math.pi / 180


@dataclass(frozen=True)
class Scenario:
    """Scripts of a server, and how a client ends that has played them.

    Attributes:
        scripts: One for each stream that it opens.
        arguments: Of its program, beside the address.
        variables: Of its program's environment.
        exit_code: Of its program.
        says: The last line on its standard output, or its standard error if it fails.
        check: Reads what it has written to standard error.
        is_late: Whether the server comes once the client has found nobody.
    """

    scripts: tuple[Script, ...]
    arguments: dict[str, object] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0
    says: str = ""
    check: Callable[[str], None] = lambda _: None
    is_late: bool = False


SCENARIOS: dict[str, Callable[[], Scenario]] = {}


def scenario(make: Callable[[], Scenario]) -> Callable[[], Scenario]:
    SCENARIOS[make.__name__] = make
    return make


# -- what the scripts read --


def seen(turn: api.EnvironmentTurn, state: int = RUNNING, reward: float = 1.0) -> np.ndarray:
    """Returns what the agent of a turn sees, after checking the rest of the turn."""
    (agent,) = turn.agents
    assert (agent.substep, agent.agent, agent.state, agent.reward) == (0, 0, state, reward)
    (leaf,) = agent.observation
    assert len(leaf) == 16
    return np.frombuffer(leaf, "<f4")


def begun(turn: api.EnvironmentTurn, environment: int) -> np.ndarray:
    """Returns the first observation of an episode."""
    assert turn.environment == environment
    assert not turn.episode_values
    observation = seen(turn, reward=0.0)
    assert np.abs(observation).max() <= 0.05
    assert np.abs(observation).max() > 0
    return observation


def has_fallen(observation: np.ndarray) -> bool:
    return bool(abs(observation[0]) > 2.4 or abs(observation[2]) > FALLEN)


def check_step(before: np.ndarray, action: int, after: np.ndarray) -> None:
    """Compares a step with gymnasium's."""
    cart_pole = CartPoleEnv()
    cart_pole.state = np.array(before, np.float64)
    assert np.abs(after - cart_pole.step(action)[0]).max() <= 1e-5


def first_turns_of(n_envs: int) -> Callable[[Stream], object]:
    """Returns what greets a client, and reads the first observation of each environment."""

    async def greet(stream: Stream) -> list[np.ndarray]:
        await stream.greet()
        assert stream.hello.n_envs == n_envs
        turns = sorted(await stream.turns(n_envs), key=lambda turn: turn.environment)
        return [begun(turn, number) for number, turn in enumerate(turns)]

    return greet


# -- the scenarios --


@scenario
def it_plays_cartpole() -> Scenario:
    async def steps_are_those_of_cartpole(stream: Stream) -> None:
        await stream.greet(seeds=(7,))
        assert (stream.hello.protocol, stream.hello.client, stream.hello.n_envs) == (1, "shed", 1)
        (substep,) = environment_spaces_from_proto(stream.hello.substeps).values()
        expected = gymnasium.make("CartPole-v1")
        high = np.array([4.8, np.inf, 24 * math.pi / 180, np.inf], np.float32)
        assert substep.observation == spaces.Box(-high, high)
        assert substep.action == expected.action_space
        assert substep.n_agents == 1
        assert stream.authorization is None
        (turn,) = await stream.turns(1)
        before = begun(turn, 0)
        for action in (0, 1, 1, 0, 0):
            await stream.act({0: action})
            (turn,) = await stream.turns(1)
            after = seen(turn)
            check_step(before, action, after)
            before = after
        await stream.say_farewell("again", training_ended=False)

    async def a_pole_that_falls_ends_its_episode_and_begins_the_next(stream: Stream) -> None:
        await stream.greet()
        (turn,) = await stream.turns(1)
        begun(turn, 0)
        for _ in range(3):
            n_steps = 0
            while turn.agents[0].state == RUNNING:
                await stream.act({0: 1})
                (turn,) = await stream.turns(1)
                n_steps += 1
                assert (turn.agents[0].state == TERMINATED) == has_fallen(seen(turn, turn.agents[0].state))
                assert bool(turn.episode_values) == has_fallen(seen(turn, turn.agents[0].state))
            assert 5 < n_steps < 20
            observation = seen(turn, TERMINATED)
            assert has_fallen(observation)
            (value,) = turn.episode_values
            assert value.name == "final_position"
            assert value.value == pytest.approx(observation[0], abs=1e-6)
            (turn,) = await stream.turns(1)
            begun(turn, 0)
        await stream.say_farewell("solved after three episodes")

    scripts = (steps_are_those_of_cartpole, a_pole_that_falls_ends_its_episode_and_begins_the_next)
    return Scenario(scripts, {"name": "shed"}, says="solved after three episodes")


@scenario
def it_plays_several_environments() -> Scenario:
    async def an_environment_waits_for_nothing_but_its_own_actions(stream: Stream) -> None:
        await first_turns_of(4)(stream)
        for acted in ([2], [0], [2], [1, 2], [2, 0, 1], [0]):
            await stream.act(dict.fromkeys(acted, 1))
            turns = await stream.turns(len(acted))
            assert sorted(turn.environment for turn in turns) == sorted(acted)
            for turn in turns:
                seen(turn)
        await stream.say_farewell("again", training_ended=False)

    async def two_actions_may_be_under_way_at_once(stream: Stream) -> None:
        await first_turns_of(4)(stream)
        await stream.act({1: 0})
        await stream.act({0: 1})
        turns = await stream.turns(2)
        assert [turn.environment for turn in turns] == [1, 0]
        await stream.say_farewell("again", training_ended=False)

    async def no_message_is_larger_than_the_server_takes(stream: Stream) -> None:
        # one turn has up to 35 bytes, and four of them come first
        await stream.greet(max_message_bytes=80)
        assert sorted(turn.environment for turn in await stream.turns(4)) == [0, 1, 2, 3]
        n_ended = 0
        while n_ended < 4:
            await stream.act(dict.fromkeys(range(4), 1))
            n_running = 0
            while n_running < 4:
                (turn,) = await stream.turns(1)
                n_running += turn.agents[0].state == RUNNING
                n_ended += turn.agents[0].state == TERMINATED
        await stream.say_farewell("enough")

    scripts = (
        an_environment_waits_for_nothing_but_its_own_actions,
        two_actions_may_be_under_way_at_once,
        no_message_is_larger_than_the_server_takes,
    )
    return Scenario(scripts, {"n_envs": 4}, says="enough")


@scenario
def it_closes_its_side_after_its_last_episode() -> Scenario:
    async def script(stream: Stream) -> None:
        await first_turns_of(2)(stream)
        n_ended = 0
        while n_ended < 3:
            await stream.act({0: 1})
            (turn,) = await stream.turns(1)
            if turn.agents[0].state == TERMINATED:
                n_ended += 1
                begun((await stream.turns(1))[0], 0)
        await stream.closed()
        await stream.act({1: 1})  # these cross its end; it does not step any more

    return Scenario((script,), {"n_envs": 2, "episodes": 3}, says="3 episodes played")


@scenario
def the_servers_seeds_decide_how_episodes_begin() -> Scenario:
    begins: list[list[np.ndarray]] = []

    def script(*seeds: int) -> Script:
        async def play(stream: Stream) -> None:
            await stream.greet(seeds=seeds)
            begins.append([seen(turn, reward=0) for turn in await stream.turns(2)])
            if len(begins) < 3:
                await stream.say_farewell("again", training_ended=False)
                return
            np.testing.assert_array_equal(begins[0], begins[1])
            different = np.concatenate([begins[0], begins[2]])
            assert len(np.unique(different, axis=0)) == 4
            await stream.say_farewell("enough")

        return play

    return Scenario((script(5, 2**63), script(5, 2**63), script(6, 7)), {"n_envs": 2}, says="enough")


@scenario
def a_seed_of_its_own_takes_precedence() -> Scenario:
    begins: list[list[np.ndarray]] = []

    def script(*seeds: int, training_ended: bool) -> Script:
        async def play(stream: Stream) -> None:
            await stream.greet(seeds=seeds)
            begins.append([seen(turn, reward=0) for turn in await stream.turns(2)])
            np.testing.assert_array_equal(begins[0], begins[-1])
            assert len(np.unique(begins[0], axis=0)) == 2
            await stream.say_farewell("enough", training_ended=training_ended)

        return play

    scripts = (script(5, 6, training_ended=False), script(7, 8, training_ended=True))
    return Scenario(scripts, {"n_envs": 2, "seed": 3}, says="enough")


def refused(code: grpc.StatusCode, details: str, **arguments: object) -> Scenario:
    async def script(stream: Stream) -> None:
        await stream.refuse(code, details)

    return Scenario((script,), arguments, exit_code=1, says=f"{code.name}: {details}")


@scenario
def an_unknown_token_ends_it_with_the_reason() -> Scenario:
    return refused(grpc.StatusCode.UNAUTHENTICATED, "the token is unknown; expected one of the file of tokens")


@scenario
def other_spaces_end_it_with_the_reason() -> Scenario:
    details = "0/observation: Box(4,) is not that of the learner, Box(6,); expected the same; " + "wrap it, " * 30
    return refused(grpc.StatusCode.FAILED_PRECONDITION, details.strip())


def pauses(errors: str) -> list[float]:
    """Returns the seconds that a client says it waits at most before it tries again."""
    return list(map(float, re.findall(r"again within ([\d.]+) s", errors)))


async def name_is_taken(stream: Stream) -> None:
    await stream.refuse(grpc.StatusCode.ALREADY_EXISTS, "client 'shed' plays; expected another name")


@scenario
def a_name_that_stays_in_use_ends_it_with_the_reason() -> Scenario:
    def check(errors: str) -> None:
        assert pauses(errors) == [0.5, 1, 2, 4, 8]

    says = "ALREADY_EXISTS: client 'shed' plays; expected another name"
    return Scenario((name_is_taken,) * 6, {"name": "shed"}, exit_code=1, says=says, check=check)


@scenario
def an_error_in_the_middle_ends_it_with_the_reason() -> Scenario:
    details = "environment 0, agent 0, 0/observation: 12 bytes; expected 16 ≠ 12, « float32 »"

    async def script(stream: Stream) -> None:
        await first_turns_of(1)(stream)
        await stream.act({0: 1})
        await stream.turns(1)
        await stream.refuse(grpc.StatusCode.INVALID_ARGUMENT, details)

    return Scenario((script,), exit_code=1, says=f"INVALID_ARGUMENT: {details}")


@scenario
def it_comes_back_with_pauses_that_grow_until_it_plays() -> Scenario:
    async def unavailable(stream: Stream) -> None:
        await stream.refuse(grpc.StatusCode.UNAVAILABLE, "the server stops")

    async def plays(stream: Stream) -> None:
        await stream.greet()
        begun((await stream.turns(1))[0], 0)
        await stream.act({0: 1})
        await stream.turns(1)
        await unavailable(stream)

    async def ends(stream: Stream) -> None:
        await stream.greet()
        begun((await stream.turns(1))[0], 0)
        await stream.say_farewell("enough")

    def check(errors: str) -> None:
        assert "UNAVAILABLE: the server stops" in errors
        assert pauses(errors) == [0.5, 1, 2, 0.5, 1]

    return Scenario((unavailable, unavailable, unavailable, plays, unavailable, ends), says="enough", check=check)


@scenario
def it_tries_again_until_the_server_is_there() -> Scenario:
    async def ends(stream: Stream) -> None:
        await first_turns_of(1)(stream)
        await stream.say_farewell("enough")

    return Scenario((ends,), says="enough", is_late=True)


@scenario
def it_comes_back_under_its_name_with_new_episodes_if_the_connection_is_cut() -> Scenario:
    async def cut(stream: Stream) -> None:
        await first_turns_of(2)(stream)
        assert not stream.hello.client
        for _ in range(3):
            await stream.act({0: 1, 1: 0})
            await stream.turns(2)
        stream.cut()

    async def ends(stream: Stream) -> None:
        await first_turns_of(2)(stream)
        assert stream.hello.client == "client-7"
        await stream.say_farewell("enough")

    return Scenario((cut, ends), {"n_envs": 2}, says="enough")


@scenario
def it_waits_for_its_name_with_its_token_until_the_server_lets_go_of_it() -> Scenario:
    """Twice of the name that the process before it has left, and once of its own."""

    async def taken(stream: Stream) -> None:
        assert stream.authorization == "Bearer sesame"
        await name_is_taken(stream)

    async def cut(stream: Stream) -> None:
        assert stream.authorization == "Bearer sesame"
        await first_turns_of(1)(stream)
        assert stream.hello.client == "shed"
        await stream.act({0: 1})
        await stream.turns(1)
        stream.cut()

    async def ends(stream: Stream) -> None:
        assert stream.authorization == "Bearer sesame"
        await first_turns_of(1)(stream)
        assert stream.hello.client == "shed"
        await stream.say_farewell("enough")

    token = {"ROLLCAST_TOKEN": "sesame"}
    return Scenario((taken, taken, cut, taken, ends), {"name": "shed"}, token, says="enough")


# -- the clients --


@dataclass(frozen=True)
class Client:
    """A program that plays CartPole.

    Attributes:
        command: How it is called; arguments follow.
        variables: What its environment has beside this one's.
        over_websockets: Whether it does not speak gRPC.
    """

    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    over_websockets: bool = False


def python_client(folder: Path) -> Client:
    """Copies the client as its README says, to where only grpcio and protobuf are installed."""
    for name in ("rollcast_play.py", "cartpole.py"):
        shutil.copy(ROOT / "clients/python" / name, folder)
    shutil.copytree(ROOT / "proto/rollcast", folder / "rollcast")
    packages = folder / "packages"
    packages.mkdir()
    for module in (grpc, google.protobuf, typing_extensions):
        path = Path(str(module.__file__))
        top = path.parent if module is grpc else path.parent.parent if module is google.protobuf else path
        (packages / top.name).symlink_to(top)
    return Client((sys.executable, "-S", str(folder / "cartpole.py")), {"PYTHONPATH": str(packages)})


def node_client(folder: Path) -> Client:
    """Copies the client as its README says, beside the packages that its package.json names."""
    node = node_with_packages(folder.parent.parent)
    for path in (ROOT / "clients/javascript").glob("*.mjs"):
        shutil.copy(path, folder)
    shutil.copytree(ROOT / "proto", folder / "proto")
    (folder / "node_modules").symlink_to(NODE / "node_modules")
    return Client((node, str(folder / "main.mjs")))


def websocket_client(folder: Path) -> Client:
    """Runs the same program without packages, with the WebSocket that Node.js shares with browsers."""
    copied = node_client(folder)
    (folder / "node_modules").unlink()
    shutil.rmtree(folder / "proto")
    node, program = copied.command
    # Node.js 22 has one, and 20.10 has one behind a flag.
    flags = () if _has_websocket(node) else ("--experimental-websocket",)
    if not _has_websocket(node, *flags):
        lacks("node", "this Node.js has no WebSocket: it is older than 20.10")
    return Client((node, *flags, program), over_websockets=True)


def _has_websocket(node: str, *flags: str) -> bool:
    asked = subprocess.run([node, *flags, "-p", "typeof WebSocket"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() == "function"


def cpp_client(folder: Path) -> Client:
    """Builds the client with Debian's gRPC, unless it is as it was: this takes ten seconds of a processor."""
    del folder
    for program in ("make", "g++", "pkg-config", "protoc", "grpc_cpp_plugin"):
        if shutil.which(program) is None:
            lacks("grpc++", f"{program} is not installed")
    if subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"], check=False).returncode:
        lacks("grpc++", "the headers of gRPC or of protobuf for C++ are not installed")
    sources = ROOT / "build/clients/cpp"
    sources.mkdir(parents=True, exist_ok=True)
    with (sources / "lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        for path in (ROOT / "clients/cpp").glob("*.*pp"):
            shutil.copy2(path, sources)
        shutil.copy2(ROOT / "clients/cpp/Makefile", sources)
        done = subprocess.run(
            ["make", f"PROTO={ROOT / 'proto'}", "CXXFLAGS=-O0 -Wall -Wextra -Werror"],
            cwd=sources,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert not done.stderr, "it warns of nothing"
    return Client((str(sources / "build/cartpole"),))


def perl_client(folder: Path) -> Client:
    """Runs the client that was written from the page of the protocol alone."""
    del folder
    perl = shutil.which("perl")
    if perl is None:
        lacks("perl", "perl is not installed")
    return Client((perl, str(ROOT / "tests/integration/cartpole.pl")), over_websockets=True)


CLIENTS = {
    "python": python_client,
    "node": node_client,
    "websocket": websocket_client,
    "cpp": cpp_client,
    "perl": perl_client,
}


@pytest.fixture(params=CLIENTS, scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return CLIENTS[request.param](tmp_path_factory.mktemp(request.param))


def test_javascript_client_names_the_packages_that_it_is_tested_with():
    named, tested = (
        json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
        for folder in (ROOT / "clients/javascript", NODE)
    )
    assert named
    assert named.items() <= tested.items()


async def run(client: Client, scenario: Scenario) -> tuple[int, str, str]:
    """Plays a scenario; returns the program's exit code, its output and its errors."""
    given = {"name": "", "n_envs": 1, "seed": 0, "episodes": 0} | scenario.arguments
    server = ScriptedServer(scenario.scripts, free_port(), over_websockets=client.over_websockets)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
        if not scenario.is_late:
            await stack.enter_async_context(server)
        process = await asyncio.create_subprocess_exec(
            *client.command,
            server.address,
            *map(str, given.values()),
            env=environment() | client.variables | scenario.variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            if scenario.is_late:
                assert process.stderr is not None
                assert b"again within 0.5 s" in await process.stderr.readline()
                await stack.enter_async_context(server)
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    server.check()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_client(client: Client, scenario: str):
    expected = SCENARIOS[scenario]()
    code, output, errors = asyncio.run(run(client, expected))
    assert code == expected.exit_code, errors
    if code == 0:
        assert output.splitlines()[-1] == expected.says
    else:
        assert expected.says in errors
    expected.check(errors)


@pytest.mark.parametrize(("option", "exit_code"), [("--help", 0), ("-h", 0), ("--episodes", 2)])
@pytest.mark.parametrize("name", ["python", "node", "websocket", "cpp"])
def test_an_option_is_no_address(tmp_path_factory: pytest.TempPathFactory, name: str, option: str, exit_code: int):
    client = CLIENTS[name](tmp_path_factory.mktemp(name))
    done = subprocess.run(
        [*client.command, option],
        env=environment() | client.variables,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    said = done.stderr if exit_code else done.stdout
    assert "usage: " in said
    assert "ADDRESS" in said.upper()
    assert (option in done.stderr) == bool(exit_code)


class Programs:
    """Programs of all clients, at two addresses: one for gRPC, one for WebSockets."""

    N_EACH = 8
    N_ENVS = N_EACH * len(CLIENTS)

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.grpc, self.websockets = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._clients = {name: make(folders.mktemp(name)) for name, make in CLIENTS.items()}
        self._started: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Starts one of each, with two environments."""
        for name, client in self._clients.items():
            address = f"ws://{self.websockets}/" if client.over_websockets else self.grpc
            process = subprocess.Popen(
                [*client.command, address, name, str(self.N_EACH)],
                env=environment() | client.variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._started.append(process)

    def check_end(self) -> None:
        """Waits until all have ended well."""
        for process in self._started:
            output, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, errors
            assert output.splitlines()[-1].lower().startswith("training has ended")

    def kill(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()

    def vector(self) -> RemoteVecEnv:
        return RemoteVecEnv(self.grpc, self.N_ENVS, websocket_address=self.websockets, timeout_s=DEADLINE_S)


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    programs = Programs(tmp_path_factory)
    yield programs
    programs.kill()


class TestAllLanguagesAtOnce:
    def test_poles_are_balanced_to_the_limit_of_time(self, programs: Programs):
        programs.start()
        env = programs.vector()
        try:
            observation, _ = env.reset(seed=4)
            assert np.abs(observation).max() <= 0.05
            for step in range(1, 501):
                position, speed, angle, spin = observation.T
                action = (angle + spin + 0.1 * speed + 0.05 * position > 0).astype(np.int64)
                before = observation
                observation, reward, terminated, truncated, infos = env.step(action)
                assert (reward == 1).all()
                assert not terminated.any()
                assert truncated.tolist() == [step == 500] * env.num_envs
                for index, seen_after in enumerate(infos["final_obs"] if step == 500 else observation):
                    check_step(before[index], int(action[index]), seen_after)
            assert not any(map(has_fallen, infos["final_obs"]))
            assert np.abs(observation).max() <= 0.05, "episodes that were truncated are followed by new ones"
        finally:
            env.close()
        programs.check_end()

    def test_one_policy_learns_from_all_and_solves_each(self, programs: Programs, tmp_path: Path):
        """An actor takes the environments, and a learner trains until the last 100 episodes, of all clients, have 490.

        Then each client's poles stand for 400 steps at least: the policy samples, and 16 episodes have a spread of 10.
        PPO, because IMPALA's policies differ more from update to update: the best one, that of the middle of the 100
        episodes, had 370 once.
        """
        address, run = f"127.0.0.1:{free_port()}", tmp_path / "run"
        training = ("--algorithm", "ppo", "--stop-return", 490, "--seed", 3, "--run-dir", run)
        serving = ("--serve-environments", programs.grpc, "--serve-websockets", programs.websockets)
        with (
            running("learner", "learner", "--address", address, *training) as learner,
            running("actor", "--learner-address", address, *serving, "--envs-per-actor", programs.N_ENVS) as actor,
        ):
            programs.start()
            learner.wait(5 * DEADLINE_S)
            said = learner.stdout.read()
            assert learner.returncode == 0, said
            programs.check_end()
            assert ended(actor) == 0
        programs.start()
        env, policy = programs.vector(), load_policy(run)
        try:
            observation, _ = env.reset(seed=5)
            n_steps, n_ended = np.zeros(env.num_envs), np.zeros(env.num_envs)
            while n_ended.min() < 2:
                observation, _, terminated, truncated, _ = env.step(policy.act(observation))
                n_steps += n_ended < 2
                n_ended += terminated | truncated
        finally:
            env.close()
        assert (n_steps.reshape(-1, programs.N_EACH).sum(axis=1) / (2 * programs.N_EACH)).min() >= 400
        programs.check_end()


def test_the_page_of_the_readme_plays_in_a_browser(tmp_path: Path):
    folder = ROOT / "clients/javascript"
    for path in folder.glob("*.mjs"):
        shutil.copy(path, tmp_path)
    port = free_port()
    (page,) = blocks((folder / "README.md").read_text(encoding="utf-8"), "html")
    assert "ws://localhost:50054" in page
    page = page.replace("localhost:50054", f"localhost:{port}")
    (tmp_path / "index.html").write_text(f"<!doctype html><title>CartPole</title>{page}", encoding="utf-8")
    handler = functools.partial(QuietHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as files, chromium() as browser:
        serving = threading.Thread(target=files.serve_forever)
        serving.start()
        try:
            tab = browser.new_page()
            tab.goto(f"http://127.0.0.1:{files.server_port}/")
            env = RemoteVecEnv("127.0.0.1:0", 1, websocket_address=f"localhost:{port}", timeout_s=DEADLINE_S)
            try:
                before, _ = env.reset(seed=2)
                for action in (0, 1, 1, 0):
                    after, reward, *_ = env.step(np.array([action]))
                    check_step(before[0], action, after[0])
                    assert reward.tolist() == [1]
                    before = after
            finally:
                env.close()
            tab.get_by_text("training has ended").wait_for(timeout=1000 * DEADLINE_S)
        finally:
            files.shutdown()
            serving.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each; browsers take a module only if its type says that it is one."""

    extensions_map: ClassVar = {".mjs": "text/javascript", ".html": "text/html"}

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
