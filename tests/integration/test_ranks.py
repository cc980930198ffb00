"""`rollcast learner` as several ranks: real processes over gloo, with the actors that dial in."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rollcast.learner import main
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import ConfigurationError, RefusedError, RollcastError
from rollcast.services.status.status import LearnerStatus, Phase
from rollcast.tools.training import serve_actors, train_here
from tests.processes import DEADLINE_S, ROOT, environment, free_port, free_ports, refused, running, wait_until, zygote
from tests.zygote import ForkedProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Small updates, and two environments for an actor: rounds follow each other quickly.
QUICK = (
    *("--batch-size", 4, "--envs-per-actor", 2, "--n-rollout-steps", 16, "--stop-return", 1e9),
    *("--log-interval-s", 0.2),
)
# Leaves the cores to others.
ENDLESS = (
    *("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.002}'),
    *("--total-steps", 10**9),
)
ENDLESS_PPO = (*ENDLESS, "--ppo.n-epochs", 1)


class Ranks:
    """Two ranks of one run, at an address and the one after it, or wherever their files say."""

    def __init__(self, *, port: int | None = None, address_file: Path | None = None) -> None:
        self.port = port or free_ports(2)
        self.address_file = address_file
        self.processes: list[ForkedProcess] = []

    def address(self, rank: int = 0) -> str:
        if self.address_file is not None:
            return f"file:{self.address_file}" + (f".{rank}" if rank else "")
        return f"127.0.0.1:{self.port + rank}"

    def status(self, rank: int = 0) -> LearnerStatus | None:
        try:
            with LearnerClient(self.address(rank), timeout_s=30.0) as client:
                return client.status()
        except RollcastError:
            return None

    def updates(self, rank: int = 0) -> int:
        status = self.status(rank)
        return 0 if status is None else status.updates

    def wait_for_updates(self, n: int = 5) -> None:
        wait_until(lambda: all(self.updates(rank) >= n for rank in range(2)), f"{n} updates of both ranks", 120)

    def ended(self, rank: int, timeout_s: float = 120.0) -> tuple[int, str]:
        """The exit code of a rank, and what it has printed."""
        output, _ = self.processes[rank].communicate(timeout_s)
        return self.processes[rank].returncode, output

    def wait_until_all_serve(self) -> None:
        for rank in range(2):
            wait_until(
                lambda rank=rank: (status := self.status(rank)) is not None and status.phase is Phase.FINISHED,
                f"rank {rank} to serve the policy",
                240,
            )

    def end_well(self, number: signal.Signals | None = None) -> list[str]:
        """Ends both ranks by a signal to each; without one, by a call of Stop; returns what they have printed."""
        if number is None:
            with LearnerClient(self.address()) as client:
                client.stop()
        else:
            for process in self.processes:
                process.send_signal(number)
        outcomes = [self.ended(rank) for rank in range(2)]
        assert [code for code, _ in outcomes] == [0, 0], outcomes
        return [output for _, output in outcomes]


@contextlib.contextmanager
def ranks(
    *arguments: object,
    port: int | None = None,
    address_file: Path | None = None,
    own: dict[int, tuple[object, ...]] | None = None,
) -> Iterator[Ranks]:
    """Starts both ranks; `own` are further arguments of one of them."""
    found = Ranks(port=port, address_file=address_file)
    at = ("--address", found.address())
    if address_file is not None:
        at = ("--address", "127.0.0.1:0", "--address-file", address_file)
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with contextlib.ExitStack() as stack:
        for rank in range(2):
            of_rank = (own or {}).get(rank, ())
            process = running("learner", "learner", *at, *QUICK, *arguments, *of_rank, RANK=str(rank), **place)
            found.processes.append(stack.enter_context(process))
        yield found


@contextlib.contextmanager
def actors(address: str, n: int, *arguments: object) -> Iterator[list[ForkedProcess]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(running("actor", "--learner-address", address, "--envs-per-actor", 2, *arguments))
            for _ in range(n)
        ]


def test_two_ranks_teach_one_policy_with_the_actors_of_both_and_serve_it_also_when_they_are_resumed(tmp_path: Path):
    run, summary = tmp_path / "run", tmp_path / "summary.json"
    arguments = ("--run-dir", run, "--ranks.check-updates", 1, "--log-level", "INFO", "--summary-json", summary)
    # an untrained policy has a return of 22
    learning = ("--algorithm", "impala", "--batch-size", 8, "--stop-return", 60, "--total-steps", 800_000)
    learning += ("--when-finished", "serve", "--resume", "auto")
    with ranks(*arguments, *learning) as two:
        with actors(two.address(1), 4) as four:
            two.wait_until_all_serve()
            assert [actor.wait(DEADLINE_S) for actor in four] == [0] * 4
        updates = two.updates()
        outputs = two.end_well(signal.SIGTERM)
    # every actor dialled rank 1, which kept half of them; slots follow from the rank
    for rank, output in enumerate(outputs):
        slots = [int(line.split("slot ")[1].split(",")[0]) for line in output.splitlines() if " joined: slot" in line]
        assert sorted(slots) == [rank, rank + 2], output
    assert "env steps" in outputs[0], "rank 0 sums the run up"
    assert "env steps" not in outputs[1], "once"
    assert json.loads(summary.read_text())["solved"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["env_steps"] > records[0]["env_steps"], "one run, of which rank 0 keeps the metrics"
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert (checkpoint / "rank1" / "training.json").is_file()
    states = [json.loads((checkpoint / part / "training.json").read_text()) for part in (".", "rank1")]
    for name in ("env_steps", "updates", "episodes", "returns"):
        assert [state["progress"][name] for state in states] == [states[0]["progress"][name]] * 2, name
    assert len(states[0]["progress"]["returns"]) == 100, "those of all ranks, of which the last 100 count"
    assert [len(state["actors"]["actors"]) for state in states] == [2, 2]
    assert states[0]["actors"]["policy_version"] == states[1]["actors"]["policy_version"]
    with ranks(*arguments, *learning) as again:
        again.wait_until_all_serve()
        assert [again.updates(rank) for rank in range(2)] == [updates] * 2, "nothing is learnt again"
        outputs = again.end_well(signal.SIGTERM)
    why = "the run had already reached --stop-return 60 (mean return "
    assert [why in output for output in outputs] == [True, False], "rank 0 says why"


def test_actors_that_no_checkpoint_knows_are_divided_anew(tmp_path: Path):
    # They return to the address of rank 0: the one that they had been sent to is nobody's any more.
    arguments, address = ("--run-dir", tmp_path / "run", "--resume", "auto", *ENDLESS_PPO), tmp_path / "address"
    with (
        ranks(*arguments, address_file=address) as first,
        actors(first.address(), 2, "--reconnect-timeout-s", 240) as two,
    ):
        wait_for_an_actor_at_each(first)
        for process in first.processes:
            process.send_signal(signal.SIGKILL)
        assert [first.ended(rank)[0] for rank in range(2)] == [-signal.SIGKILL] * 2
        with ranks(*arguments, address_file=address) as second:
            wait_for_an_actor_at_each(second)
            second.wait_for_updates()
            for rank in range(2):
                with LearnerClient(second.address(rank)) as client:
                    (info,) = client.actors()
                    assert info.incarnation == 1, "the same process"
            second.end_well()
        assert [actor.wait(120) for actor in two] == [0, 0]


def test_ranks_that_an_operator_stops_resume_and_one_learner_goes_on_with_the_actors_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run, checkpoints = tmp_path / "run", tmp_path / "run" / "checkpoints"
    ppo = ("--ppo.minibatch-steps", 16, "--ppo.n-epochs", 2, "--normalize-observations")
    # records are those of the beginning and of checkpoints
    common = ("--run-dir", run, "--resume", "auto", "--log-interval-s", 3600, *ppo, *ENDLESS)
    of_ranks = (*common, "--ranks.check-updates", 1)
    with ranks(*of_ranks) as first, actors(first.address(), 2, "--reconnect-timeout-s", 120) as both:
        first.wait_for_updates()
        with LearnerClient(first.address(0)) as client, LearnerClient(first.address(1)) as other:
            with pytest.raises(RefusedError, match="cannot be paused or resumed here; expected a call to the learner"):
                other.pause()
            client.pause()
            # a checkpoint needs a round of both ranks, which go on during a pause
            path, _ = other.save_checkpoint()
            paused_at = first.updates(0)
            assert (Path(path).parent / "manifest").is_file() or (Path(path) / "manifest").is_file()
            assert first.updates(0) == first.updates(1) == paused_at
            client.resume()
            first.wait_for_updates(paused_at + 3)
        # at the rank that has no run
        first.processes[1].send_signal(signal.SIGTERM)
        assert [first.ended(rank)[0] for rank in range(2)] == [0, 0]
        saved = sorted(checkpoints.glob("[0-9]*"))
        assert len(saved) == 2
        assert all((path / "rank1" / "training.json").is_file() for path in saved)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [record["train/updates"] for record in records] == [1, *(int(path.name) for path in saved)]
        assert main(["ls", str(run), "--json-output"]) == 0
        (listed,) = json.loads(capsys.readouterr().out)
        state = json.loads((saved[-1] / "training.json").read_text())
        assert listed["env_steps"] == records[-1]["env_steps"] == state["progress"]["env_steps"]
        copy = shutil.copytree(run, tmp_path / "copy")
        for command in (["compare", run, copy], ["doctor", run], ["plot", run, "--out", tmp_path / "curves.svg"]):
            assert main([str(part) for part in command]) == 0, command
        assert (tmp_path / "curves.svg").is_file()
        with ranks(*of_ranks, port=first.port) as second:
            second.wait_for_updates(int(saved[-1].name) + 5)
            second.end_well(signal.SIGTERM)
        stopped_at = max(int(path.name) for path in checkpoints.glob("[0-9]*"))
        with running("learner", "learner", "--address", first.address(), *QUICK, *common) as one:
            wait_until(lambda: first.updates() > stopped_at, "the learner to go on")
            wait_until(lambda: _n_streaming(first) == 2, "the actors of both ranks")
            with LearnerClient(first.address()) as client:
                assert {info.incarnation for info in client.actors()} == {1}
                client.stop()
            assert one.wait(DEADLINE_S) == 0
        assert [actor.wait(DEADLINE_S) for actor in both] == [0, 0]


@pytest.mark.parametrize(
    ("own", "options"), [("replay buffers", ()), ("log of durable rollouts", ("--durable",))], ids=["buffer", "log"]
)
def test_ranks_with_replay_buffers_resume_and_one_learner_is_refused(
    own: str, options: tuple[object, ...], tmp_path: Path
):
    run = tmp_path / "run"
    dqn = ("--algorithm", "dqn", "--replay.sampler", "prioritized", "--normalize-observations", *options)
    dqn += ("--replay.min-size", 64, "--replay.capacity", 4096, "--replay.samples-per-insert", 1)
    common = ("--run-dir", run, "--resume", "auto", *dqn, *ENDLESS)
    of_ranks = (*common, "--ranks.check-updates", 1)
    with ranks(*of_ranks) as first, actors(first.address(), 2, "--reconnect-timeout-s", 120):
        first.wait_for_updates()
        first.end_well(signal.SIGTERM)
        said = refused("learner", "--address", first.address(), *QUICK, *common)
        assert f"was written by 2 ranks, each with its own {own}" in said
        stopped_at = max(int(path.name) for path in (run / "checkpoints").glob("[0-9]*"))
        with ranks(*of_ranks, port=first.port) as second:
            second.wait_for_updates(stopped_at + 5)
            second.end_well()


def test_ranks_go_on_after_a_deadline_without_data_and_end_after_one_without_an_answer(tmp_path: Path):
    deadlines = ("--ranks.data-timeout-s", 0.5, "--ranks.timeout-s", 20)
    with (
        ranks("--run-dir", tmp_path / "run", *deadlines, "--ranks.check-updates", 1, *ENDLESS_PPO) as two,
        actors(two.address(), 2) as both,
    ):
        two.wait_for_updates()
        wait_for_an_actor_at_each(two)
        with LearnerClient(two.address(1)) as client:
            (info,) = client.actors()
        (hanging,) = [actor for actor in both if info.actor_id.endswith(f"-{actor.pid}")]
        hanging.send_signal(signal.SIGSTOP)
        two.wait_for_updates(two.updates() + 8)
        hanging.send_signal(signal.SIGCONT)
        wait_for_an_actor_at_each(two)

        two.processes[1].send_signal(signal.SIGSTOP)
        code, output = two.ended(0)
        assert code == 1
        assert "rank 1 no longer answers" in output
        assert "within 20 s (--ranks.timeout-s)" in output
        two.processes[1].send_signal(signal.SIGCONT)
        assert two.ended(1)[0] == 1


def _n_streaming(ranks: Ranks, rank: int = 0) -> int:
    status = ranks.status(rank)
    return 0 if status is None else status.actors_alive


def wait_for_an_actor_at_each(ranks: Ranks) -> None:
    """Waits until two actors play, one at each rank."""
    found = [0, 0]

    def is_there() -> bool:
        found[:] = [_n_streaming(ranks, rank) for rank in range(2)]
        return found == [1, 1]

    wait_until(is_there, "an actor at each rank", 240)


def test_ranks_with_different_settings_are_refused(tmp_path: Path):
    own = {1: ("--impala.learning-rate", 0.5)}
    options = ("--run-dir", tmp_path / "run", "--algorithm", "impala", "--impala.learning-rate", 0.25)
    with ranks(*options, own=own) as two:
        for rank in range(2):
            code, output = two.ended(rank)
            assert code == 1
            assert "of one run differ: --impala.learning-rate is 0." in output
    assert not (tmp_path / "run").exists()


def test_a_rank_that_cannot_serve_ends_the_other_with_its_error_and_leaves_no_run(tmp_path: Path):
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        with ranks("--run-dir", tmp_path / "run", port=port) as two:
            code, output = two.ended(0)
            assert code == 1
            assert f"rank 1 has ended: AddressInUseError: the address '127.0.0.1:{port + 1}' is in use" in output
            assert "for the parameters of rank 0" in output
            assert two.ended(1)[0] == 1
    assert not (tmp_path / "run").exists(), "the same command works once the address is free"


def test_policies_that_drift_apart_end_the_run_with_the_rank_that_differs(tmp_path: Path):
    arguments = ("--run-dir", tmp_path / "run", "--algorithm", "tests.drifting_algorithm:DriftingImpala", *ENDLESS)
    with ranks(*arguments, "--ranks.check-updates", 5) as two, actors(two.address(), 2):
        for rank in range(2):
            code, output = two.ended(rank)
            assert code == 1
            assert "the policies of the ranks differ: rank 1 of 2 no longer has the policy of rank 0" in output


def test_an_actor_stays_where_it_is_if_it_cannot_reach_the_rank_it_is_sent_to(tmp_path: Path):
    """A rank without data takes part."""
    # Nobody listens there: both ranks serve at 127.0.0.1.
    unreachable = ("--advertised-host", "127.0.0.99", "--address-file", tmp_path / "address")
    checked = ("--ranks.check-updates", 1, "--ranks.data-timeout-s", 0.1)
    with ranks("--run-dir", tmp_path / "run", *checked, *unreachable, *ENDLESS_PPO) as two:
        with actors(two.address(), 2, "--log-level", "INFO") as both:
            wait_until(lambda: _n_streaming(two, 0) == 2, "both actors at the rank that they have dialled", 120)
            two.wait_for_updates()
            assert _n_streaming(two, 1) == 0
            two.end_well()
            outputs = [actor.communicate(DEADLINE_S)[0] for actor in both]
    warning = f"sends this actor to 127.0.0.99:{two.port + 1}, which cannot be reached"
    assert sum(warning in output for output in outputs) == 1, outputs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--deterministic",), "--deterministic with 2 ranks"),
        (("--cuda-graphs", "on"), "--cuda-graphs on with 2 ranks; expected auto or off"),
        (("--spaces-from", "first_actor"), "--spaces-from first_actor with 2 ranks"),
        (("--ingest-processes", "1"), "--ingest-processes 1 with 2 ranks; expected 0"),
        (("--ranks.backend", "nccl", "--device", "cpu"), "--ranks.backend: 'nccl' with the device 'cpu'"),
    ],
)
def test_what_several_ranks_cannot_have_is_refused(
    options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (place | {"TORCH_CPP_LOG_LEVEL": "ERROR"}).items():
        monkeypatch.setenv(name, value)
    given = ["--run-dir", str(tmp_path / "run")]
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        serve_actors(ServingSettings.from_command_line("rollcast learner", [*given, *options]), io.StringIO())
    with pytest.raises(ConfigurationError, match="expected rollcast learner under torchrun"):
        train_here(TrainSettings.from_command_line("rollcast train", given), io.StringIO())


def test_torchrun_starts_the_ranks_again_and_they_resume_with_the_same_actors(tmp_path: Path):
    run, port = tmp_path / "run", free_ports(2)
    options = (
        *(
            "--nproc-per-node",
            2,
            "--max-restarts",
            1,
            "--master-port",
            free_port(),
            "-m",
            "rollcast.learner",
            "learner",
        ),
        *("--address", f"127.0.0.1:{port}", "--run-dir", run, "--resume", "auto", "--checkpoint-interval-s", 1),
        *(*QUICK, *ENDLESS_PPO),
    )
    two = Ranks(port=port)
    with Path(os.devnull).open("wb") as nowhere:
        started = zygote().fork(
            "torch.distributed.run",
            list(map(str, options)),
            cwd=ROOT,
            environment=environment(),
            outputs=(nowhere.fileno(), nowhere.fileno()),
        )
    try:
        with actors(two.address(), 2, "--connect-timeout-s", 120, "--reconnect-timeout-s", 120) as both:
            wait_for_an_actor_at_each(two)
            two.wait_for_updates()
            with LearnerClient(two.address()) as client:
                client.save_checkpoint()
            before = two.updates()
            learners = [child for child in psutil.Process(started.pid).children() if "RANK" in child.environ()]
            assert len(learners) == 2
            learners[1].kill()
            wait_until(lambda: not any(learner.is_running() for learner in learners), "both ranks to end")
            two.wait_for_updates(before + 5)
            wait_for_an_actor_at_each(two)
            with LearnerClient(two.address(1)) as client:
                (info,) = client.actors()
                assert info.incarnation == 1, "the same process, at the same rank"
                assert info.slot % 2 == 1
                client.stop()
            assert started.wait(DEADLINE_S) == 0
            assert [actor.wait(DEADLINE_S) for actor in both] == [0, 0], (
                "a call of Stop ends training for the actors of all ranks"
            )
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(DEADLINE_S)
