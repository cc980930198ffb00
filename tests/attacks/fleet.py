"""Every process of rollcast that listens, with honest actors: their answers, memory and logs while others attack."""

import contextlib
import dataclasses
import queue
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc
import psutil

from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import RollcastError
from rollcast.services.security.security import ClientSecurity
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.status.status import Phase
from rollcast.v1.environment_pb2 import PlayRequest
from rollcast.v1.environment_pb2_grpc import EnvironmentServiceStub
from tests.keda import Keda
from tests.play_messages import agent, hello, turn, turns
from tests.processes import DEADLINE_S, free_port, status_of, wait_until, zygote_process
from tests.zygote import ForkedProcess

_ENVIRONMENT: Final = ("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs")
TOKENS: Final = {role: f"{role}-0123456789abcdef" for role in ("actor", "viewer", "operator")}
# Descriptors of each process: few, so that all of them are soon held.
DESCRIPTORS: Final = 256
OPERATOR: Final = ClientSecurity(token=TOKENS["operator"])


class Member:
    """One process, whose lines are read and counted.

    Attributes:
        n_lines: Lines that it has logged so far.
        ports: What it listens at, by what is served there.
    """

    def __init__(self, name: str, process: ForkedProcess, ports: Mapping[str, int]) -> None:
        self.name = name
        self.process = process
        self.n_lines = 0
        self.ports = ports
        self.last: list[str] = []
        self._thread = threading.Thread(target=self._read, name=f"reads-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._thread.join(DEADLINE_S)
        self.process.stdout.close()

    @property
    def resident_bytes(self) -> int:
        """The memory of the process, and of those below it."""
        process = psutil.Process(self.process.pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # closed
            for line in self.process.stdout:
                self.n_lines += 1
                self.last = [*self.last[-20:], line]


@dataclasses.dataclass(frozen=True)
class Figures:
    """The state of the fleet at a moment.

    Attributes:
        resident_bytes: Memory, by process.
        n_lines: Lines logged, by process.
        answers_s: Seconds that each answer of the control plane took.
    """

    resident_bytes: Mapping[str, int]
    n_lines: Mapping[str, int]
    answers_s: Mapping[str, float]


class _HonestGame:
    """A client of the actor that serves environments: plays until it is closed, and comes back if it is cut off."""

    def __init__(self, address: str, spaces: EnvironmentSpaces, *, step_s: float) -> None:
        self._address, self._spaces, self._step_s = address, spaces, step_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="honest-game", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._over.set()
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            with contextlib.suppress(grpc.RpcError), make_channel(self._address, OPERATOR) as channel:
                self._play(EnvironmentServiceStub(channel))

    def _play(self, stub: EnvironmentServiceStub) -> None:
        requests: queue.SimpleQueue[PlayRequest | None] = queue.SimpleQueue()
        requests.put(hello("honest", offered=self._spaces))
        try:
            for _ in stub.Play(iter(requests.get, None)):
                requests.put(None if self._over.wait(self._step_s) else turns(turn(agent(observation=[bytes(16)]))))
        finally:
            requests.put(None)


class Fleet:
    """A learner, a relay, a replay server, a scaler, a dashboard, three actors, and one that serves environments.

    Two of the actors have metrics of their own.

    Attributes:
        servers: The names of those that serve RPCs.
    """

    servers = ("learner", "relay", "replay", "scaler", "games")

    def __init__(self, members: Sequence[Member], *, step_s: float) -> None:
        self.members = {member.name: member for member in members}
        # Connected from the beginning: nobody new is let in while strangers hold all connections.
        self._steady = LearnerClient(self.address("learner"), security=OPERATOR, timeout_s=DEADLINE_S)
        self._game = _HonestGame(self.address("games"), self._steady.describe().spaces, step_s=step_s)

    def close(self) -> None:
        """Ends its connections."""
        self._game.close()
        self._steady.close()

    def address(self, name: str) -> str:
        """Returns the address of a member's RPCs, or page."""
        return f"127.0.0.1:{self.members[name].ports['serves']}"

    def env_steps(self) -> int:
        """Steps of all honest actors that the learner has accepted."""
        return sum(actor.env_steps for actor in self._steady.actors() if actor.actor_id.startswith("honest"))

    def save_checkpoint(self) -> str:
        """Has the learner write a checkpoint, and returns its folder."""
        return self._steady.save_checkpoint()[0]

    def rate(self, seconds: float) -> float:
        """Measures the honest actors: steps a second."""
        began, steps = time.monotonic(), self.env_steps()
        time.sleep(seconds)
        return (self.env_steps() - steps) / (time.monotonic() - began)

    def figures(self, of: str = "") -> Figures:
        """Asks for everything that people and machines ask for, until it comes; an answer that never comes fails.

        Args:
            of: The member that is asked; empty: all.
        """
        answers_s = {}
        for name, ask in self._questions().items():
            if of in ("", name.partition(":")[0]):
                began = time.monotonic()
                _answered(name, ask)
                answers_s[name] = time.monotonic() - began
        return Figures(
            {name: member.resident_bytes for name, member in self.members.items()},
            {name: member.n_lines for name, member in self.members.items()},
            answers_s,
        )

    def _questions(self) -> Mapping[str, Callable[[], object]]:
        def learner(name: str, ask: Callable[[LearnerClient], object]) -> Callable[[], object]:
            def asks() -> None:
                with LearnerClient(self.address(name), security=OPERATOR, timeout_s=DEADLINE_S) as client:
                    ask(client)

            return asks

        questions: dict[str, Callable[[], object]] = {}
        for name in ("learner", "replay"):
            questions[f"{name}: status"] = learner(name, LearnerClient.status)
            questions[f"{name}: actors"] = learner(name, LearnerClient.actors)
            questions[f"{name}: description"] = learner(name, LearnerClient.describe)
        questions["learner: history"] = learner("learner", lambda client: next(client.watch_history()))
        for name in ("relay", "games"):
            questions[f"{name}: health"] = learner(name, LearnerClient.is_serving)
        questions["replay: info"] = self._replay_info
        questions["scaler: metric"] = self._wanted_actors
        questions["dashboard: page"] = lambda: _read(f"http://{self.address('dashboard')}/", "training")
        for name, member in self.members.items():
            if "metrics" in member.ports:
                url = f"http://127.0.0.1:{member.ports['metrics']}/metrics"
                questions[f"{name}: metrics"] = lambda url=url: _read(url, "rollcast_")  # type: ignore[misc]
        return questions

    def _replay_info(self) -> None:
        with ReplayClient(self.address("replay"), security=OPERATOR) as client:
            client.info()

    def _wanted_actors(self) -> None:
        with Keda(self.address("scaler")) as keda:
            keda.metric()


def _answered(name: str, ask: Callable[[], object]) -> None:
    def is_answered() -> bool:
        with contextlib.suppress(RollcastError, grpc.RpcError, OSError):
            ask()
            return True
        return False

    # a server needs a moment to see that strangers have gone
    wait_until(is_answered, f"the answer to {name}")


def _read(url: str, expected: str) -> None:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        assert expected in answer.read().decode(), f"{url} does not tell of {expected!r}"


@contextlib.contextmanager
def fleet(folder: Path, *, step_s: float = 0.001) -> Iterator[Fleet]:
    """Starts everything, and waits until every honest actor has brought something.

    Args:
        folder: Where it keeps its files.
        step_s: The time of a step of an honest environment: actors leave cores to others, and their rate tells who is
            kept waiting.
    """
    tokens = folder / "tokens"
    tokens.write_text("".join(f"{role}:{token}\n" for role, token in TOKENS.items()))
    operator = ("--token-file", folder / "operator")
    (folder / "operator").write_text(TOKENS["operator"])
    for secret in (tokens, folder / "operator"):
        secret.chmod(0o600)
    environment = (*_ENVIRONMENT, f'{{"step_s": {step_s}}}')
    served = {name: free_port() for name in ("learner", "relay", "replay", "scaler", "dashboard", "games")}
    metrics = {name: free_port() for name in ("learner", "relay", "replay", "scaler", "actor", "games")}
    websockets = {"games": free_port()}

    def at(name: str) -> str:
        return f"127.0.0.1:{served[name]}"

    def command(name: str, *arguments: object, process: str = "rollcast.learner") -> tuple[str, tuple[object, ...]]:
        option = {"dashboard": "--listen-address", "games": "--serve-environments"}.get(name, "--address")
        serves = (option, at(name)) if name in served else ()
        tells = ("--metrics-address", f"127.0.0.1:{metrics[name]}") if name in metrics else ()
        return name, (process, *arguments, *serves, *tells)

    def actor(name: str, of: str) -> tuple[str, tuple[object, ...]]:
        who = ("--learner-address", at(of), "--actor-id", f"honest-{name}", *operator)
        return command(name, *environment, *who, process="rollcast.actor")

    learns = (
        "--ppo.n-epochs",
        1,
        "--n-rollout-steps",
        32,
        "--total-steps",
        10**9,
        "--run-dir",
        folder / "run",
        "--eval-interval-s",
        0.5,
        "--eval-episodes",
        2,
    )
    of_learner = ("--learner-address", at("learner"), *operator)
    of_games = ("--actor-id", "honest-games", "--envs-per-actor", 8, "--serve-tokens-file", tokens)
    of_games = (*of_games, "--serve-websockets", f"127.0.0.1:{websockets['games']}")
    commands = dict(
        (
            command("learner", "learner", *environment, *learns, "--tokens-file", tokens),
            command("replay", "replay", "serve", *environment, "--tokens-file", tokens),
            command("relay", "relay", *of_learner, "--tokens-file", tokens),
            command("scaler", "scaler", *of_learner),
            command("dashboard", "dashboard", *of_learner),
            actor("actor", "learner"),
            actor("actor-of-relay", "relay"),
            actor("actor-of-replay", "replay"),
            command("games", *of_learner, *of_games, process="rollcast.actor"),
        )
    )
    with contextlib.ExitStack() as stack:
        members = []
        for name, arguments in commands.items():
            process = zygote_process("tests.attacks.few_descriptors", DESCRIPTORS, *arguments)
            ports = {"serves": served.get(name), "metrics": metrics.get(name), "websockets": websockets.get(name)}
            members.append(Member(name, process, {what: port for what, port in ports.items() if port is not None}))
            stack.callback(members[-1].close)
            if name == "learner":  # those that find none wait for seconds before they look again
                wait_until(lambda: status_of(at("learner"), OPERATOR).phase is Phase.TRAINING, "the learner")
        started = Fleet(members, step_s=step_s)
        stack.callback(started.close)
        try:
            wait_until(lambda: _is_running(started), "everything runs", every_s=0.5)
            started.figures()
            yield started
        except BaseException:
            for member in members:
                print(f"{member.name} said last:\n{''.join(member.last)}")  # noqa: T201
            raise


def _is_running(started: Fleet) -> bool:
    for member in started.members.values():
        assert member.process.poll() is None, f"{member.name} has ended: {''.join(member.last)}"
    try:
        with LearnerClient(started.address("learner"), security=OPERATOR) as client:
            is_trained = client.status().updates > 0 and sum(actor.rollouts > 0 for actor in client.actors()) == 3
        if not is_trained:
            return False
        with ReplayClient(started.address("replay"), security=OPERATOR) as client:
            return client.info().size > 0
    except (RollcastError, grpc.RpcError, OSError):
        return False
