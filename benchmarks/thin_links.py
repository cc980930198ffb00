"""Measures what an update of a policy costs a link: bytes, and the time until its last subscriber has decoded it.

The updates are those of real training, see `benchmarks.real_updates`. The subscribers are those of actors, in processes
of their own: on loopback, and behind a proxy in another process that lets 100 Mbit/s pass, for all of them together.
The clock starts before `publish`. The link's own time is that of the bytes alone, at its rate.
"""

import contextlib
import queue
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from typing import Any, Final, NamedTuple

from benchmarks.processes import Processes, in_threads
from benchmarks.real_updates import MLP_64, MLP_256, NATURE_CNN, policies_of
from benchmarks.table import Figure, print_table
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.policies import PolicyEncodingName, PolicySpec, PolicyState

_BYTES_PER_S: Final = 100e6 / 8
# 32 whole policies of the Nature CNN take 17 s.
_ROUND_TIMEOUT_S: Final = 60.0
# On a busy machine the subscribers take a while to start.
_START_TIMEOUT_S: Final = 180.0
_PROCESSES: Final = 4
# Encoding, and the --policy-rounding of the learner.
_ROUNDED = {"none": ", not rounded", "bfloat16": ", rounded"}
_WAYS: Final[tuple[tuple[PolicyEncodingName, str], ...]] = (
    ("full", "none"),
    ("bfloat16", "bfloat16"),
    ("delta", "bfloat16"),
    ("delta", "none"),
)


class Cost(NamedTuple):
    """The cost of an update: medians over the updates.

    Attributes:
        n_bytes: The bytes for each subscriber, with all that HTTP/2 adds; 0: not counted.
        seconds: The time until the last subscriber has it.
    """

    n_bytes: float
    seconds: float


def subscribers(address: str, n: int, encoding: PolicyEncodingName, arrivals: "Queue[float]") -> None:
    """Process: holds subscriptions, and reports the time when each of them has decoded a policy, for ever."""
    from rollcast.services.client.client import LearnerClient
    from rollcast.services.errors import LearnerUnreachableError
    from rollcast.services.policies.assembler import PolicyAssembler
    from rollcast.services.policies.encodings import ENCODINGS
    from rollcast.services.wire.allocator import reuse_large_buffers

    reuse_large_buffers()  # as actors do

    def subscribe(client: LearnerClient) -> None:
        assembler = PolicyAssembler(encodings=ENCODINGS[encoding])
        held = 0
        while True:
            with contextlib.suppress(LearnerUnreachableError):  # many connect at once: an attempt may time out
                for version, _state in client.subscribe_policy(held, assembler=assembler):
                    arrivals.put(time.monotonic())
                    held = version

    in_threads(subscribe, [LearnerClient(address) for _ in range(n)])


def thin_link(port: int, orders: Connection) -> None:
    """Process: a link of 100 Mbit/s to a port. Sends its address; answers each order with the bytes that came down."""
    from tests.chaos.proxy import Proxy

    proxy = Proxy(port, seed=0, bytes_per_s=_BYTES_PER_S)
    orders.send(proxy.address)
    while True:
        orders.recv()
        orders.send(proxy.n_bytes_down)


def measure(policies: Sequence[PolicyState], encoding: PolicyEncodingName, n: int, *, is_thin: bool) -> Cost | None:
    """Publishes policies one after the other to `n` subscribers, and returns the cost of those after the first.

    Returns None if one does not arrive in time: connections are lost whose pings wait behind too many bytes.
    """
    from rollcast.learner.serving.publisher import PolicyPublisher
    from rollcast.services.server.server import make_server

    publisher = PolicyPublisher({}, PolicySpec(), seed=0)
    nobody: Any = None  # no rollouts, no control
    server = make_server("127.0.0.1:0", sink=nobody, source=publisher, control=nobody, limits=Limits(max_actors=n))
    server.start()
    processes = Processes()
    try:
        arrivals = processes.context.Queue()
        address, link = server.address, None
        if is_thin:
            link, theirs = processes.context.Pipe()
            processes.start(thin_link, int(address.rpartition(":")[2]), theirs)
            address = link.recv()
        n_processes = min(n, _PROCESSES)
        for _ in range(n_processes):
            processes.start(subscribers, address, n // n_processes, encoding, arrivals)
        costs = []
        for state in policies:
            started, before = time.monotonic(), _carried(link)
            publisher.publish(state)
            timeout_s = _ROUND_TIMEOUT_S if costs else _START_TIMEOUT_S
            seconds = max(arrivals.get(timeout=timeout_s) for _ in range(n)) - started
            costs.append(Cost((_carried(link) - before) / n, seconds))
        assert publisher.version == len(policies), "a version was left out"
    except queue.Empty:
        return None
    finally:
        processes.kill()
        server.stop()
        publisher.close()
    return Cost(*(statistics.median(column) for column in zip(*costs[1:], strict=True)))


def _carried(link: Connection | None) -> int:
    """Returns the bytes that a link has carried down."""
    if link is None:
        return 0
    link.send(None)
    n_bytes: int = link.recv()
    return n_bytes


def _milliseconds(seconds: float) -> Figure:
    return Figure([seconds], ".1f", "ms", scale=1e3)


def print_costs(*, n_before: int, n_kept: int) -> None:
    """Prints the table.

    Args:
        n_before: The updates of training before the first that counts.
        n_kept: The updates that count.
    """
    rows = []
    for name, training in (("Nature CNN", NATURE_CNN), ("MLP 64x64", MLP_64), ("MLP 256x256", MLP_256)):
        kept = {
            rounding: policies_of(training, rounding=rounding, n_before=n_before, n_kept=n_kept + 1)
            for rounding in ("none", "bfloat16")
        }
        for (encoding, rounding), n in ((way, n) for way in _WAYS for n in (1, 32)):
            near = measure(kept[rounding], encoding, n, is_thin=False)
            thin = measure(kept[rounding], encoding, n, is_thin=True)
            rows.append(
                (
                    f"{name} to {n}, {encoding}" + ("" if encoding == "full" else _ROUNDED[rounding]),
                    "" if thin is None else Figure([thin.n_bytes]),
                    *("connections are lost" if one is None else _milliseconds(one.seconds) for one in (near, thin)),
                    "" if thin is None else _milliseconds(thin.n_bytes * n / _BYTES_PER_S),
                )
            )
            print(*rows[-1], sep=" | ", flush=True)
    print(f"\n{n_kept} consecutive updates after {n_before}; medians; until the last subscriber has decoded the policy")
    header = ("policy", "bytes for each", "loopback", "100 Mbit/s", "the link's own time")
    print_table(header, rows)
