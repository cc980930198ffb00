"""The processes of a soak, started as a user starts them."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.status.status import LearnerStatus
from tests.certificates import calling, security_of, serving
from tests.processes import ROOT, environment, free_port, rollcast, wait_until

_STARTED_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 30.0


class Crew:
    """A learner, its actors, and who looks on.

    Args:
        folder: Where logs and the run go.
        learner: The learner's command and options.
        certs: A folder of `rollcast certs`, for TLS and tokens; None: neither.
        same_name: Whether the actor that leaves comes back under its name, or always as somebody new.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        learner: tuple[object, ...],
        *,
        certs: Path | None,
        env: tuple[object, ...],
        same_name: bool,
    ) -> None:
        self.name = name
        self._folder, self._certs, self._env, self._same_name = folder, certs, env, same_name
        self._address = f"localhost:{free_port()}"
        self._numbers = itertools.count(1)
        security: tuple[object, ...] = ()
        if certs is not None:
            security = serving(certs)
        self._learner = self._start(
            "learner", "learner", *learner, "--address", self._address, "--run-dir", folder / name, *security, *env
        )
        # The processes that run from the beginning to the end, by their names in the soak; the learner is first.
        self.steady = {f"{name} learner": self._learner}
        self._wanderer: subprocess.Popen[bytes] | None = None

    def start(self, n_actors: int) -> None:
        """Starts everybody else: actors that stay and one that does not, a subscriber and a viewer."""
        wait_until(self._serves, f"{self.name}: the learner serves", _STARTED_TIMEOUT_S)
        for i in range(n_actors):
            self.steady[f"{self.name} actor {i}"] = self._start_actor(f"steady-{i}")
        for kind in ("subscriber", "viewer"):
            certs = () if self._certs is None else ("--certs", self._certs)
            self.steady[f"{self.name} {kind}"] = self._start(kind, "tests.soak.clients", kind, self._address, *certs)
        self.come()
        wait_until(lambda: self.status().updates, f"{self.name}: the learner learns", _STARTED_TIMEOUT_S)

    def come(self) -> None:
        """Brings the actor that leaves now and then."""
        number = next(self._numbers)
        self._wanderer = self._start_actor("wanderer" if self._same_name else f"wanderer-{number}")

    def leave(self, number: signal.Signals) -> None:
        """Sends it away."""
        assert self._wanderer is not None, "it comes first"
        self._wanderer.send_signal(number)
        self._wanderer.wait(_END_TIMEOUT_S)
        self._wanderer = None

    def status(self) -> LearnerStatus:
        """Returns the learner's status."""
        with LearnerClient(self._address, security=security_of(self._certs, "viewer")) as client:
            return client.status()

    def ended(self) -> list[str]:
        """Returns the steady processes that have ended, with their exit codes."""
        ended = ((name, process.poll()) for name, process in self.steady.items())
        return [f"{name} has ended with {code}; see {self._folder}" for name, code in ended if code is not None]

    def stop(self) -> list[str]:
        """Ends them all; says which actors and learner did not end as they ought to."""
        wrong = []
        processes = self.steady | ({f"{self.name} wanderer": self._wanderer} if self._wanderer is not None else {})
        for name, process in reversed(processes.items()):
            is_client = name.endswith(("subscriber", "viewer"))
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait(_END_TIMEOUT_S)
            if code and not is_client:
                wrong.append(f"{name} ended with {code} after SIGTERM; see {self._folder}")
        return wrong

    def _serves(self) -> bool:
        assert self._learner.poll() is None, f"the learner has ended; see {self._folder}"
        try:
            self.status()
        except RollcastError:
            return False
        return True

    def _start_actor(self, actor_id: str) -> subprocess.Popen[bytes]:
        security: tuple[object, ...] = ()
        if (certs := self._certs) is not None:
            security = calling(certs, "actor")
        return self._start(
            actor_id,
            "learner",
            "actor",
            "--learner-address",
            self._address,
            "--actor-id",
            actor_id,
            *security,
            *self._env,
        )

    def _start(self, name: str, module: str, *arguments: object) -> subprocess.Popen[bytes]:
        with (self._folder / f"{self.name}-{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"rollcast.{module}", *map(str, arguments)],
                cwd=ROOT,
                env=environment(),
                stdout=log,
                stderr=log,
            )


_ENDLESS = ("--torch-threads", 1, "--total-steps", 10**9, "--stop-return", 1e9, "--checkpoint-interval-s", 30)


def make_crews(folder: Path, *, step_s: float) -> list[Crew]:
    """DQN with TLS, tokens and a replay buffer that is full within a minute or two; IMPALA with a local actor, too."""
    made = rollcast("certs", folder / "certs")
    assert made.returncode == 0, made.stderr
    env = ("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", f'{{"step_s": {step_s}}}')
    dqn = ("--algorithm", "dqn", "--replay.capacity", 20_000, "--replay.samples-per-insert", 8, *_ENDLESS)
    impala = ("--algorithm", "impala", "--n-actors", 1, "--envs-per-actor", 4, "--batch-size", 8)
    impala += ("--n-rollout-steps", 16, *_ENDLESS)
    return [
        Crew("DQN", folder, ("learner", *dqn), certs=folder / "certs", env=env, same_name=True),
        Crew("IMPALA", folder, ("train", *impala), certs=None, env=env, same_name=False),
    ]
