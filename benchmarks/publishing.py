"""Measures publishing: the trainer's time for a version, and the learner's processor time for it with many subscribers.

    python -m benchmarks.publishing [--rounds 40] [--versions 60]

The first table: a trainer multiplies matrices for 20 ms between two versions of 6.75 MB, and hands each version over in
one of two ways, in turns. The old way, that of rollcast before it had an encoder, copies the arrays, encodes them and
wakes all subscribers in the trainer's thread; the new one copies the flat vector and leaves the rest to the encoder.
The last column is the time that the same matrices take in each way: what the encoder's thread takes from them.

The second table: a policy of 20 KB, 20 versions a second, to subscribers in other processes; the processor time is that
of this process, which serves them, for each version. With each version 8 actors are given a credit, as with batches of
8 rollouts. `all at once` wakes every subscriber of one condition; `each by itself` are subscribers that want every
version; `by credit` are actors.
"""

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from benchmarks.broadcast import mlp_state, nature_cnn_state
from benchmarks.processes import Processes
from benchmarks.table import Figure, print_table
from rollcast.learner.algorithms.policy_snapshot import PolicySnapshot
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.serving.publisher import PolicyPublisher
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.codec import EncodedPolicy, encode_policy
from rollcast.services.policies.evaluated import WaitForVersion
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.server.server import make_server
from rollcast.services.wire.allocator import reuse_large_buffers

_COMPUTE_S: Final = 0.02
_INTERVAL_S: Final = 0.05
_CREDITS: Final = 8
_PROCESSES: Final = 4
# Both ways in turns: so many versions, after some that bring the memory into the state of a run.
_BLOCK: Final = 10
_WARM: Final = 3
_START_TIMEOUT_S: Final = 60.0


class AllAtOnce:
    """A source of policies as it was: one condition, on which every subscriber waits for every version."""

    spaces: Final = {}
    state_size = 0
    frame_stack = 1

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: EncodedPolicy | None = None
        self.version = 0
        self.ended = False

    def publish(self, state: PolicyState) -> None:
        """Encodes a version in the caller's thread, and wakes all."""
        encoded = encode_policy(self.version + 1, state)
        with self._changed:
            self._newest, self.version = encoded, encoded.version
            self._changed.notify_all()

    def newest(self) -> EncodedPolicy:
        """Returns the newest version."""
        assert self._newest is not None
        return self._newest

    def want(self, actor_id: str, version: int) -> None:
        """Does nothing: all are sent every version."""

    @contextmanager
    def subscription(self, *, after_version: int, actor_id: str = "") -> Iterator[WaitForVersion]:
        """Opens a subscription."""
        del actor_id
        held = after_version

        def wait_for_version(timeout_s: float) -> EncodedPolicy | None:
            nonlocal held
            with self._changed:
                if not self._changed.wait_for(lambda: self.version > held, timeout_s):
                    return None
                held = self.version
                return self._newest

        yield wait_for_version

    def act(self, *_observation: object, **_options: object) -> Any:
        """Is not called."""
        raise NotImplementedError

    def close(self) -> None:
        """Does nothing: there is no thread."""


class FlatPolicy(torch.nn.Module):
    """A policy whose parameters are slices of one vector, as those of every algorithm here."""

    def __init__(self, state: PolicyState) -> None:
        super().__init__()
        vector = torch.cat([torch.from_numpy(np.array(array)).reshape(-1) for array in state.values()])
        start = 0
        for name, array in state.items():
            parameter = torch.nn.Parameter(vector[start : start + array.size].view(array.shape))
            self.register_parameter(name.replace(".", "_"), parameter)
            start += array.size


class Handed(NamedTuple):
    """Seconds of a hand-over: of the trainer's processor, of the clock, and of the computing after it."""

    processor: float
    clock: float
    computing: float


def trainer_times(rounds: int) -> dict[str, list[Handed]]:
    """Returns every hand-over by its way."""
    module, copier = FlatPolicy(nature_cnn_state()), make_copier("cpu")
    matrix = torch.randn(512, 512)
    old, new = AllAtOnce(), PolicyPublisher({}, PolicySpec(), seed=0)

    def copied() -> PolicyState:
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in module.state_dict().items()}

    ways: dict[str, Callable[[], object]] = {
        "old": lambda: old.publish(copied()),
        "new": lambda: new.publish(PolicySnapshot(module, copier)),
    }

    def compute(n: int) -> None:
        for _ in range(n):
            torch.mm(matrix, matrix)

    started = time.perf_counter()
    compute(100)
    n_products = max(1, int(_COMPUTE_S / (time.perf_counter() - started) * 100))
    times: dict[str, list[Handed]] = {way: [] for way in ways}
    for block in range(2 * rounds // _BLOCK):
        way = ("old", "new")[block % 2]
        for round_ in range(-_WARM, _BLOCK):
            started, used = time.perf_counter(), time.thread_time()
            ways[way]()
            handed, used = time.perf_counter(), time.thread_time() - used
            compute(n_products)
            if round_ >= 0:
                times[way].append(Handed(used, handed - started, time.perf_counter() - handed))
    new.end()
    return times


def many_subscribers(address: str, names: list[str], ready: Any, n_received: Any) -> None:
    """Process: holds subscriptions, and counts the versions that they get."""
    from rollcast.services.client.client import LearnerClient
    from rollcast.services.errors import RollcastError

    def subscribe(name: str) -> None:
        got_one = False
        while True:
            try:
                with LearnerClient(address) as client:
                    for _ in client.subscribe_policy(actor_id=name):
                        with n_received.get_lock():
                            n_received.value += 1
                        if not got_one:
                            got_one = True
                            ready.release()
            except RollcastError:  # hundreds connect at once: an attempt may time out
                time.sleep(0.1)

    threads = [threading.Thread(target=subscribe, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cost_per_version(source: Any, n: int, names: Callable[[int], str], versions: int) -> tuple[float, float]:
    """Returns the processor seconds of this process for a version, and the policies that were sent for it."""
    nobody: Any = None
    state = mlp_state()
    server = make_server("127.0.0.1:0", sink=nobody, source=source, control=nobody, limits=Limits(max_actors=n))
    server.start()
    source.publish(state)
    processes = Processes()
    ready, n_received = processes.context.Semaphore(0), processes.context.Value("l", 0)
    try:
        for process in range(_PROCESSES):
            mine = [names(i) for i in range(process, n, _PROCESSES)]
            processes.start(many_subscribers, server.address, mine, ready, n_received)
        for _ in range(n):
            assert ready.acquire(timeout=_START_TIMEOUT_S), "not all have subscribed"
        received, used, turn = n_received.value, time.process_time(), 0
        for _ in range(versions):
            source.publish(state)
            for _ in range(min(_CREDITS, n)):
                source.want(names(turn % n), source.version)
                turn += 1
            time.sleep(_INTERVAL_S)
        return (time.process_time() - used) / versions, (n_received.value - received) / versions
    finally:
        processes.kill()
        server.stop()
        source.close()


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--versions", type=int, default=60)
    parser.add_argument("--subscribers", default="4,256", help="numbers of subscribers")
    options = parser.parse_args()
    reuse_large_buffers()  # as `rollcast train` and `rollcast learner` do
    torch.set_num_threads(1)
    rows = []
    for way, handed in trainer_times(options.rounds).items():
        rows.append((way, *(_milliseconds(column) for column in zip(*handed, strict=True))))
    print(f"\n6.75 MB, {options.rounds} versions each way, in turns")
    print_table(("the trainer hands over", "its processor time", "by the clock", "the computing after it"), rows)
    rows = []
    for n in map(int, options.subscribers.split(",")):
        for name, source, names in (
            ("all at once", AllAtOnce(), lambda _: ""),
            ("each by itself", PolicyPublisher({}, PolicySpec(), seed=0), lambda _: ""),
            ("by credit", PolicyPublisher({}, PolicySpec(), seed=0), lambda i: f"actor-{i}"),
        ):
            cost_s, sent = cost_per_version(source, n, names, options.versions)
            rows.append((f"{n}, {name}", Figure([cost_s], ".2f", "ms", scale=1e3), Figure([sent])))
    print("\n20 KB, the learner's processor time for each version")
    print_table(("subscribers, woken", "processor", "sent"), rows)


def _milliseconds(seconds: Sequence[float]) -> Figure:
    """Returns the figure that prints as median and quartiles."""
    return Figure(seconds, ".2f", "ms", scale=1e3, has_range=True, is_quartiles=True)


if __name__ == "__main__":
    main()
