"""Small worlds of one part each: a few threads that use it, and what must be true of it. Thousands run in a second."""

import contextlib
import dataclasses
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.replay.rate_limiter import RateLimiter
from rollcast.learner.serving.round_places import Place
from rollcast.learner.serving.rounds import Rounds
from rollcast.learner.serving.stream_state import StreamState
from rollcast.services.errors import NotReadyError
from rollcast.services.limits.bytes_in_flight import BytesInFlight
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.subscribers import Subscribers
from tests.simulation.scheduler import Choices, Process, ScheduleError, Scheduler
from tests.simulation.shrink import Outcome
from tests.simulation.threads import simulated

_RATES = (0.0, 0.02, 0.1, 0.3, 0.6)
# By the clock of the schedule: each wait of a script that may give up does so sooner.
_MAX_S = 600.0
# A wait that ends by this has missed its wake-up.
_LONG_S = 60.0


@dataclass(frozen=True)
class Scripts:
    """A scenario of a small world.

    Attributes:
        numbers: The part's own: its capacity, for example.
        scripts: What each thread does: actions, each with its numbers.
        rate: The share of switch points at which another task goes on.
    """

    numbers: tuple[float, ...]
    scripts: tuple[tuple[tuple[Any, ...], ...], ...]
    rate: float

    def smaller(self) -> Iterator["Scripts"]:
        """Yields scenarios with one action fewer."""
        for i, script in enumerate(self.scripts):
            for j in range(len(script)):
                shorter = (*script[:j], *script[j + 1 :])
                yield dataclasses.replace(self, scripts=(*self.scripts[:i], shorter, *self.scripts[i + 1 :]))

    def __str__(self) -> str:
        lines = [f"  thread {i}: {', '.join(map(str, script))}" for i, script in enumerate(self.scripts)]
        return "\n".join([f"{self.numbers}, switches at {self.rate}", *lines])


# Makes the threads of a scenario, and what is checked when all have ended; called as a task.
Build = Callable[[Scripts, Scheduler], tuple[Sequence[Callable[[], None]], Callable[[], None]]]


def run_scripts(build: Build, scenario: Scripts, seed: int, switches: dict[int, int] | None = None) -> Outcome:
    """Runs a schedule of a small world."""
    choices = Choices(seed, scenario.rate, switches)
    sim = Scheduler(choices, max_steps=20_000, max_time_s=_MAX_S)
    process = Process("process")
    failure = ""
    with simulated(sim, seed):
        threads, check = build(scenario, sim)
        left = [sim.spawn(process, f"thread {i}", thread) for i, thread in enumerate(threads)]

        def have_ended() -> bool:
            while left and left[-1].is_done:
                left.pop()
            return not left

        try:
            sim.run(have_ended)
            sim.spawn(process, "check", check)
            sim.run(lambda: not sim.n_ready)
        except ScheduleError as error:
            failure = str(error)
    return Outcome(failure, sim.n_steps, choices.made, choices.sizes)


def _need(is_true: bool, text: str) -> None:
    if not is_true:
        raise ScheduleError(text)


def _number(piece: Any) -> int:
    """Returns the number of a rollout that a script has made up."""
    return int(piece.rollout.number)


# -- the queue of rollouts --


def draw_queue(seed: int) -> Scripts:
    """Draws producers that put, reserve and give up, and one consumer that takes batches."""
    rng = random.Random(seed)
    capacity, batch = rng.randint(1, 5), rng.randint(1, 4)
    scripts = [
        tuple(
            (rng.choice(("put", "put", "reserve", "reserve", "give up", "release")), rng.randint(1, 2))
            for _ in range(rng.randint(1, 3))
        )
        for _ in range(rng.randint(1, 3))
    ]
    return Scripts((capacity, batch), tuple(scripts), rng.choice(_RATES))


def build_queue(scenario: Scripts, sim: Scheduler) -> tuple[Sequence[Callable[[], None]], Callable[[], None]]:
    """Has producers and a consumer use a `RolloutQueue`."""
    capacity, batch = int(scenario.numbers[0]), int(scenario.numbers[1])
    queue = RolloutQueue(capacity)
    put: Counter[int] = Counter()
    got: Counter[int] = Counter()
    promised = [0]
    n_producers = [len(scenario.scripts)]
    numbers = iter(range(1 << 20))

    def produce(script: tuple[tuple[Any, ...], ...]) -> None:
        for action, n_envs in script:
            rollout: Any = SimpleNamespace(n_envs=n_envs, number=next(numbers))
            n_reserved = 0
            if action in {"reserve", "release"}:
                if queue.reserve(n_envs):
                    n_reserved = n_envs
                    promised[0] += n_envs
                    _need(promised[0] <= capacity, f"{promised[0]} are promised, of {capacity}")
                    sim.sleep(0.05)  # the rollout is played
                if action == "release":
                    sim.sleep(0.5)
                    promised[0] -= n_reserved
                    queue.release(n_reserved)
                    continue
            until = sim.now + 1.0 if action == "give up" else sim.now + _MAX_S
            # Before the call: once it has begun, the room is not promised any more.
            promised[0] -= n_reserved
            began = sim.now
            if queue.put(rollout, is_active=lambda until=until: sim.now < until, n_reserved=n_reserved):
                put[rollout.number] += n_envs
                # The consumer is away for five seconds after some of a dozen.
                _need(sim.now - began < _LONG_S, f"a rollout of {n_envs} waited for {sim.now - began:.0f} s")
            else:
                _need(action == "give up", f"a rollout of {n_envs} never got in")
        n_producers[0] -= 1

    def consume() -> None:
        while n_producers[0] or queue.size:
            left = batch
            while left:
                piece = queue.get(left, _LONG_S, enough=left)
                if piece is None:
                    if not n_producers[0] and not queue.size:
                        return
                    continue
                _need(queue.size <= capacity + left + 1, f"{queue.size} are queued, of {capacity}")
                left -= piece.n_trajectories
                got[_number(piece)] += piece.n_trajectories
                sim.sleep(5.0 if _number(piece) % 3 == 0 else 0.0)

    def watch() -> None:
        n_looks = 0
        while n_producers[0]:
            sim.sleep(1.0)
            fits = queue.size + promised[0] + 2 <= capacity  # any rollout
            n_looks = n_looks + 1 if fits and queue.n_waiting else 0
            _need(n_looks < 2, "a rollout waits, and there is room for it")

    def check() -> None:
        _need(got == put, f"put {dict(put)}, and got {dict(got)}")
        _need(queue.n_waiting == 0, f"{queue.n_waiting} still wait")
        _need(queue.reserve(capacity), "room is missing at the end")

    return [*(partial(produce, script) for script in scenario.scripts), consume, watch], check


# -- credits --


def draw_credits(seed: int) -> Scripts:
    """Draws streams that open, send some rollouts and close, beside a consumer."""
    rng = random.Random(seed)
    scripts = [
        tuple((rng.randint(0, 3), rng.choice((True, True, False))) for _ in range(rng.randint(1, 3)))
        for _ in range(rng.randint(1, 3))
    ]
    return Scripts((rng.randint(1, 6), rng.randint(1, 2)), tuple(scripts), rng.choice(_RATES))


def build_credits(scenario: Scripts, sim: Scheduler) -> tuple[Sequence[Callable[[], None]], Callable[[], None]]:
    """Has streams spend the credits of their `StreamState` for room in a `RolloutQueue`, as `IntakeStream` does."""
    capacity, n_envs = int(scenario.numbers[0]), int(scenario.numbers[1])
    queue = RolloutQueue(capacity)
    n_streams = [len(scenario.scripts)]

    def give_credit(state: StreamState, sequence: int) -> None:
        if state.acknowledge(sequence) and queue.reserve(n_envs):
            state.reserved()

    def send(script: tuple[tuple[Any, ...], ...]) -> None:
        acknowledged = 0
        for n_rollouts, is_patient in script:
            state = StreamState("actor", n_envs, acknowledged=acknowledged)
            give_credit(state, acknowledged)
            try:
                for _ in range(n_rollouts):
                    rollout: Any = SimpleNamespace(n_envs=n_envs)
                    until = sim.now + (_MAX_S if is_patient else 0.3)
                    _need(state.order.receive(acknowledged + 1), "the next rollout is taken for a duplicate")
                    n_reserved = state.spend()
                    if not queue.put(rollout, is_active=lambda until=until: sim.now < until, n_reserved=n_reserved):
                        _need(not is_patient and not n_reserved, "a rollout with room of its own was not taken")
                        break
                    acknowledged += 1
                    give_credit(state, acknowledged)
                    ahead = state.order.credit - acknowledged
                    _need(1 <= ahead <= 2, f"{ahead} rollouts are credited beyond the last")
            finally:
                if n_reserved := state.spend():
                    queue.release(n_reserved)
        n_streams[0] -= 1

    def consume() -> None:
        while n_streams[0] or queue.size:
            if queue.get(2, 1.0, enough=2) is not None:
                sim.sleep(0.2)

    def check() -> None:
        _need(queue.reserve(capacity), "what closed streams had reserved is missing")

    return [*(partial(send, script) for script in scenario.scripts), consume], check


# -- rounds --


def draw_rounds(seed: int) -> Scripts:
    """Draws streams that play, leave and come back, and a trainer that casts a version for each full round.

    All but the first may send nothing more in the end, and hold their places.
    """
    rng = random.Random(seed)
    scripts = [
        tuple(
            (rng.choice(("play", "play", "play", "leave", "old")), rng.choice((0.0, 0.0, 0.5)))
            for _ in range(rng.randint(not is_hollow, 4))
        )
        + ((("stay", 0.0),) if is_hollow else ())
        for is_hollow in (False, *(rng.random() < 0.3 for _ in range(rng.randint(0, 3))))
    ]
    return Scripts((rng.randint(1, 4), rng.randint(1, 2)), tuple(scripts), rng.choice(_RATES))


def build_rounds(scenario: Scripts, sim: Scheduler) -> tuple[Sequence[Callable[[], None]], Callable[[], None]]:
    """Has streams take places in `Rounds`, each as `IntakeStream` does, while versions are cast."""
    batch, n_envs = int(scenario.numbers[0]), int(scenario.numbers[1])
    rounds = Rounds(batch)
    rounds.begin(1)
    newest = [1]
    came: Counter[int] = Counter()
    n_streams = [len(scenario.scripts)]
    changed = threading.Condition()
    # The rollouts of each round that have places, or had them and have come; without the first of each stream.
    taken: dict[int, list[Place]] = defaultdict(list)

    def note(place: Place) -> None:
        if place.played_version is None or not place.version:
            return
        places = taken[place.version]
        places.append(place)
        # Those that are late have given theirs to others.
        n_taken = n_envs * sum(not each.is_late for each in places)
        _need(n_taken < batch + n_envs, f"{n_taken} places are taken of {batch}")

    def stream(script: tuple[tuple[Any, ...], ...]) -> None:
        recalled = threading.Event()

        def give_back(place: Place) -> None:
            if place in taken[place.version] and place.is_held:
                taken[place.version].remove(place)
            rounds.give_back(place)

        def ends() -> None:
            with changed:
                n_streams[0] -= 1
                changed.notify_all()

        place = rounds.book(n_envs, recall=recalled.set)
        note(place)
        for action, seconds in script:
            if action == "stay":
                ends()
            if not place.version:
                rounds.wait(place, is_active=lambda: n_streams[0] > 0)
                note(place)
            if action == "stay":
                while n_streams[0]:
                    with changed:
                        changed.wait(0.5)
                    if recalled.is_set():
                        give_back(place)
                        recalled.clear()
                        place = rounds.book(n_envs, recall=recalled.set)
                give_back(place)
                return
            while place.version > newest[0] and not recalled.is_set():
                with changed:
                    changed.wait(0.5)
            if action == "leave" or recalled.is_set():
                give_back(place)
                recalled.clear()
                place = rounds.book(n_envs, recall=recalled.set)
                note(place)
                continue
            sim.sleep(seconds)
            version = place.version if action == "play" else max(1, place.version - 1)
            rounds.played(place, version)
            with changed:
                came[version] += n_envs
                changed.notify_all()
            if not place.is_held:
                place = rounds.ask(n_envs, played_version=version)
                if place.version:
                    note(place)
        give_back(place)
        ends()

    def train() -> None:
        began = sim.now
        while True:
            with changed:
                is_complete = changed.wait_for(lambda: came[newest[0]] >= batch or not n_streams[0], 0.25)
                if not n_streams[0]:
                    return
                if is_complete:
                    newest[0] += 1
            if not is_complete:
                what = f"round {newest[0]} has {came[newest[0]]} of {batch}, and nobody plays it"
                _need(sim.now - began < 30.0, what)
                rounds.pass_late_on()
                continue
            began = sim.now
            rounds.begin(newest[0])
            with changed:
                changed.notify_all()

    def check() -> None:
        _need(rounds.n_waiting == 0, f"{rounds.n_waiting} still wait")
        place: Place = rounds.book(1)
        _need(place.version == newest[0] or came[newest[0]] >= batch, "places are missing at the end")

    return [*(partial(stream, script) for script in scenario.scripts), train], check


# -- the limiter of a replay buffer --


def draw_limiter(seed: int) -> Scripts:
    """Draws threads that insert and threads that sample."""
    rng = random.Random(seed)
    max_insert, max_sample = rng.randint(1, 3), rng.randint(1, 3)
    scripts = [
        tuple((kind, rng.randint(1, most)) for _ in range(rng.randint(1, 6)))
        for kind, most in (("insert", max_insert), ("sample", max_sample)) * rng.randint(1, 2)
    ]
    return Scripts(
        (rng.choice((0.5, 1.0, 2.0, 0.3)), rng.randint(1, 5), max_insert, max_sample),
        tuple(scripts),
        rng.choice(_RATES),
    )


def build_limiter(scenario: Scripts, sim: Scheduler) -> tuple[Sequence[Callable[[], None]], Callable[[], None]]:
    """Has threads insert and sample through a `RateLimiter`; those that are left alone give up."""
    per_insert, min_size, max_insert, max_sample = scenario.numbers
    changed = threading.Condition()
    limiter = RateLimiter(
        per_insert,
        min_size=int(min_size),
        max_insert=int(max_insert),
        max_sample=int(max_sample),
        changed=changed,
    )
    error = max(per_insert * max_insert, max_sample)
    n_of = Counter(script[0][0] for script in scenario.scripts if script)
    counts = Counter(inserts=0, samples=0)

    def use(script: tuple[tuple[Any, ...], ...]) -> None:
        for kind, n in script:
            other = "sample" if kind == "insert" else "insert"

            def goes_on(other: str = other) -> bool:
                return n_of[other] > 0

            with changed:
                wait = limiter.await_insert if kind == "insert" else limiter.await_sample
                if not wait(n, _MAX_S, goes_on):
                    _need(n_of[other] == 0, f"{kind} of {n} was not let in")
                    break
                if kind == "insert":
                    limiter.inserted(n)
                    counts["inserts"] += n
                else:
                    limiter.sampled(n)
                    counts["samples"] += n
                    least = per_insert * min_size - error
                    diff = counts["inserts"] * per_insert - counts["samples"]
                    _need(diff >= least - 1e-6, f"the difference is {diff}, below {least}")
                    _need(counts["inserts"] >= min_size, f"sampled from {counts['inserts']} of {min_size}")
        if script:
            n_of[script[0][0]] -= 1

    return [partial(use, script) for script in scenario.scripts], lambda: None


# -- subscribers to policies --


def draw_subscribers(seed: int) -> Scripts:
    """Draws subscribers with and without a name, and a publisher."""
    rng = random.Random(seed)
    scripts = [
        tuple((rng.choice(("", "a", "a", "b")), rng.choice((0.0, 0.5))) for _ in range(rng.randint(1, 3)))
        for _ in range(rng.randint(1, 3))
    ]
    return Scripts((rng.randint(1, 5),), tuple(scripts), rng.choice(_RATES))


def build_subscribers(scenario: Scripts, sim: Scheduler) -> tuple[Sequence[Callable[[], None]], Callable[[], None]]:
    """Has subscribers wait for versions that a publisher offers; each gets the last one in the end.

    The calls of earlier subscriptions may end while they wait.
    """
    n_versions = int(scenario.numbers[0])
    subscribers = Subscribers()
    offered_at: dict[int, float] = {}
    ends: list[Callable[[], None]] = []

    def subscribe(script: tuple[tuple[Any, ...], ...]) -> None:
        last = 0
        for i, (name, seconds) in enumerate(script):
            is_last = i == len(script) - 1
            with subscribers.subscription(last, name, None if is_last else ends.append) as wait:
                while True:
                    if name:
                        subscribers.pause(name)
                        subscribers.want(name, last + 1)
                    encoded = wait(20.0)
                    if encoded is None:
                        break
                    _need(encoded.version > last, f"version {encoded.version} came after {last}")
                    last = encoded.version
                    late_s = sim.now - offered_at[last]
                    _need(late_s < 5.0, f"version {last} came after {late_s:.0f} s")
                    sim.sleep(seconds)
                    if not is_last:
                        break
        if script:
            _need(last == n_versions, f"the last version was {last}, of {n_versions}")

    def publish() -> None:
        for version in range(1, n_versions + 1):
            offered: Any = SimpleNamespace(version=version, n_bytes=100)
            offered_at[version] = sim.now
            subscribers.offer(offered)
            sim.sleep(0.3 * (version % 2))
            while ends:
                ends.pop()()
        sim.sleep(_LONG_S)
        subscribers.end()

    def check() -> None:
        _need(subscribers.n_waiting == 0, f"{subscribers.n_waiting} still wait")

    return [*(partial(subscribe, script) for script in scenario.scripts), publish], check


# -- bytes in flight --


def draw_bytes(seed: int) -> Scripts:
    """Draws streams that send rollouts in parts, and some that break."""
    rng = random.Random(seed)
    largest = rng.randint(2, 6)
    scripts = [
        tuple(
            ("break" if rng.random() < 0.15 else "send", rng.randint(1, largest), rng.randint(1, 3))
            for _ in range(rng.randint(1, 3))
        )
        for _ in range(rng.randint(1, 4))
    ]
    return Scripts((largest, largest + rng.randint(0, 4)), tuple(scripts), rng.choice(_RATES))


def build_bytes(scenario: Scripts, sim: Scheduler) -> tuple[Sequence[Callable[[], None]], Callable[[], None]]:
    """Has streams hold bytes in `BytesInFlight`; each that goes on gets room in the end."""
    largest, most = int(scenario.numbers[0]), int(scenario.numbers[1])
    limits = Limits()
    limits = dataclasses.replace(limits, max_rollout_bytes=largest, max_bytes_in_flight=most, stalled_stream_s=1e6)
    room = BytesInFlight(limits)
    held: Counter[int] = Counter()

    def send(number: int, script: tuple[tuple[Any, ...], ...]) -> None:
        with room.stream(f"actor {number}", cancel=lambda: None, is_active=lambda: True) as stream:
            for action, n_bytes, n_parts in script:
                parts = [n_bytes // n_parts] * (n_parts - 1)
                parts.append(n_bytes - sum(parts))
                for i, part in enumerate(parts):
                    is_last = i == len(parts) - 1
                    if action == "break" and is_last:
                        held[number] = 0
                        return
                    with contextlib.suppress(NotReadyError):
                        stream.hold(part, completes=is_last)
                    held[number] += part
                    _need(sum(held.values()) <= most, f"{sum(held.values())} bytes are held, of {most}")
                time.sleep(0.1)
                held[number] = 0
                stream.give_back()

    def check() -> None:
        _need(room.n_bytes == 0 and room.n_waiting == 0, f"{room.n_bytes} bytes are held at the end")

    return [partial(send, i, script) for i, script in enumerate(scenario.scripts)], check


PARTS: dict[str, tuple[Callable[[int], Scripts], Build]] = {
    "queue": (draw_queue, build_queue),
    "credits": (draw_credits, build_credits),
    "rounds": (draw_rounds, build_rounds),
    "limiter": (draw_limiter, build_limiter),
    "subscribers": (draw_subscribers, build_subscribers),
    "bytes": (draw_bytes, build_bytes),
}
