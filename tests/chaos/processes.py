"""Actors, their relays and clients, which are killed, frozen and ended, and start again under their names."""

import functools
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rollcast.services.policies.policies import PolicyEncodingName
from tests.chaos.learners import ENVS_PER_ACTOR
from tests.processes import ROOT, environment, free_port, zygote
from tests.zygote import ForkedProcess, Zygote

_STEP_S = 0.002
_END_TIMEOUT_S = 60.0
_LOOK_S = 0.1
_MODULE = "tests.chaos.acting"
# The exit codes after faults; a client without a handler ends by SIGTERM itself.
_ENDS = (0, -signal.SIGKILL, -signal.SIGTERM)
# A client that is frozen, or whose connection has gone silent, loses its places after this time.
_OF_CLIENTS = {"--step-timeout-s": "5"}


class SupervisedProcess:
    """One process, and a thread that starts the next when it ends.

    Args:
        name: Its name, for its log and its thread.
        folder: The folder for its log.
        module: The module of tests that it runs.
        variables: Variables of its environment, besides this process's.

    Attributes:
        refusals: Ends that no signal explains, such as exit code 1, by which it says that it cannot go on.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.refusals: list[str] = []
        self._module, self._arguments, self._variables = module, arguments, variables
        self._closing = threading.Event()
        self._lock = threading.Lock()  # guards the process: it is not started and signalled at once
        self._process = self._start()
        self.n_starts = 1
        self._thread = threading.Thread(target=self._supervise, name=f"chaos-supervisor-{name}", daemon=True)
        self._thread.start()

    def signal(self, number: int) -> None:
        """Sends the process that runs now a signal; one that has just ended gets none."""
        with self._lock:
            if self._process.poll() is None:
                self._process.send_signal(number)

    def close(self) -> bool:
        """Ends it with SIGTERM, and for good.

        Returns:
            True if it ended by itself; else it was killed.
        """
        self._closing.set()
        self._thread.join(_END_TIMEOUT_S)
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_TIMEOUT_S)
            return False
        return True

    def _start(self) -> ForkedProcess:
        return start_logged(self._module, self._arguments, self.log, self._variables)

    def _supervise(self) -> None:
        while not self._closing.wait(_LOOK_S):
            with self._lock:
                if (code := self._process.poll()) is not None and not self._closing.is_set():
                    if code not in _ENDS:
                        self.refusals.append(f"{self.name} ended with {code}; see {self.log}")
                    self._process = self._start()
                    self.n_starts += 1


class SupervisedActor(SupervisedProcess):
    """An actor that is started again.

    Args:
        folder: The folder for its log and its acknowledgements.
        policy_encoding: The form in which it asks for policies.
        serves: The port where environments dial in; None: it steps its own.
        variables: Variables of its environment, besides this process's.
    """

    def __init__(
        self,
        actor_id: str,
        address: str,
        folder: Path,
        *,
        n_envs: int = ENVS_PER_ACTOR,
        step_s: float = _STEP_S,
        policy_encoding: PolicyEncodingName = "full",
        serves: int | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.actor_id = actor_id
        self.acknowledgements = folder / f"{actor_id}.acknowledged"
        self.policies = folder / f"{actor_id}.policies"
        options = acting_options(
            actor_id, address, n_envs=n_envs, step_s=step_s, policy_encoding=policy_encoding, serves=serves
        )
        super().__init__(actor_id, folder, _MODULE, [str(self.acknowledgements), *options], variables)


class SupervisedClient(SupervisedProcess):
    """A client with environments that dial in, which is started again under its name.

    Args:
        number: Its number, from 0.
        folder: The folder for its log, and for the record of the actions that it gets.
    """

    def __init__(self, number: int, address: str, folder: Path, *, n_envs: int, step_s: float) -> None:
        self.number = number
        self.given = folder / f"client-{number}.given"
        arguments = [str(self.given), address, f"client-{number}", str(number), str(n_envs), str(step_s)]
        super().__init__(f"client-{number}", folder, "tests.chaos.playing", arguments)


class SupervisedRelay(SupervisedProcess):
    """A relay that is started again, under its name and at its address.

    Args:
        number: Its number, from 0.
        learner_address: The learner's address.
        folder: The folder for its log.
        policy_encoding: The form in which it asks for policies.
    """

    def __init__(self, number: int, learner_address: str, folder: Path, *, policy_encoding: PolicyEncodingName) -> None:
        self.port = free_port()
        options = {
            "--address": f"127.0.0.1:{self.port}",
            "--learner-address": learner_address,
            "--relay-id": f"relay-{number}",
            "--policy-encoding": policy_encoding,
            "--connect-timeout-s": "300",
        }
        super().__init__(f"relay-{number}", folder, "rollcast.learner", ["relay", *sum(options.items(), ())])


class SupervisedScaler(SupervisedProcess):
    """A scaler that is started again at its address.

    Args:
        learner_address: The learner's address.
        folder: The folder for its log.
        options: Its other options.
    """

    def __init__(self, learner_address: str, folder: Path, options: Mapping[str, object]) -> None:
        self.port = free_port()
        options = {
            "--address": f"127.0.0.1:{self.port}",
            "--learner-address": learner_address,
            "--log-level": "INFO",
            **options,
        }
        arguments = [str(part) for pair in options.items() for part in pair]
        super().__init__("scaler", folder, "rollcast.learner", ["scaler", *arguments])


def start_logged(module: str, arguments: Sequence[str], path: Path, variables: Mapping[str, str]) -> ForkedProcess:
    """Starts a module of tests whose output is added to a file."""
    # what changes the clock is loaded by the loader, so by the warm process
    warm = _zygote_with(tuple(variables.items())) if "LD_PRELOAD" in variables else zygote()
    with path.open("ab") as log:
        return warm.fork(module, arguments, cwd=ROOT, environment=environment() | variables, outputs=[log.fileno()] * 2)


@functools.cache
def _zygote_with(variables: tuple[tuple[str, str], ...]) -> Zygote:
    return Zygote.started(environment() | dict(variables))


def acting_options(
    actor_id: str,
    address: str,
    *,
    n_envs: int | None,
    step_s: float,
    policy_encoding: PolicyEncodingName = "full",
    serves: int | None = None,
) -> list[str]:
    """Returns the options of `python -m rollcast.actor`; without `n_envs`, it steps as many as the learner wants."""
    its_own = {"--env-id": "tests.chaos.bookkeeping:BookkeepingEnv", "--env-kwargs": f'{{"step_s": {step_s}}}'}
    options = {
        "--learner-address": address,
        "--actor-id": actor_id,
        **(its_own if serves is None else {"--serve-environments": f"127.0.0.1:{serves}"} | _OF_CLIENTS),
        # the learner may still be starting, beside other work
        "--connect-timeout-s": "300",
        # for those whose run was killed: they end by themselves
        "--reconnect-timeout-s": "120",
        "--policy-encoding": policy_encoding,
    }
    if n_envs is not None:
        options["--envs-per-actor"] = str(n_envs)
    return [*sum(options.items(), ())]
