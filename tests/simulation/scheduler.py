"""Runs tasks one at a time, in an order that a seed decides, by a clock of its own.

A task is a greenlet. It runs until it waits for something or reaches a switch point, such as a lock; there the
scheduler may let another one go on. Time stands still while any task can run; when none can, it jumps to the next
timer. So a schedule takes no longer than its steps, and the same choices give the same run.
"""

import builtins
import heapq
import itertools
import math
import random
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import greenlet  # type: ignore[import-untyped]

# In the place of a number of waits: the task is ready, and its process is frozen.
_FROZEN = -1

# Of the schedule that runs: the tasks that could go on. The same object in all schedules, because each switch point
# looks at it first. Most of the time it is empty.
READY: "deque[Task]" = deque()
# The switch point, by its name among Python's builtins.
PAUSE = "__rollcast_pause__"


def _nothing() -> None:
    """Is the switch point outside of schedules."""


setattr(builtins, PAUSE, _nothing)


class ScheduleError(AssertionError):
    """A schedule has shown a fault."""


class Choices:
    """Decides at each switch point; remembers every decision that is not the plain one, 0.

    Args:
        seed: The seed of the decisions.
        rate: The share of switch points at which another task goes on.
        given: The decisions of an earlier run, by number; None: they are drawn.

    Attributes:
        n: The decisions so far.
        n_plain: Decisions below this number are the plain one, and need no `pick`: they are only counted.
        made: The decisions that were not the plain one, by number.
        sizes: Of decisions that are given: among how many each was.
    """

    __slots__ = ("_draw", "_given", "_log_of_plain", "made", "n", "n_plain", "random", "sizes")

    def __init__(self, seed: int, rate: float, given: Mapping[int, int] | None = None) -> None:
        self.random = random.Random(seed)
        self._draw = self.random.random
        self._given = given
        self._log_of_plain = math.log1p(-rate)
        self.n = 0
        self.n_plain = 0 if given is not None else self._next_drawn(0)
        self.made: dict[int, int] = {}
        self.sizes: list[int] = []

    def pick(self, n: int) -> int:
        """Returns a number below `n`, nearly always 0."""
        i = self.n
        self.n = i + 1
        if i < self.n_plain:
            return 0
        if self._given is None:
            choice = int(self._draw() * n)
            self.n_plain = self._next_drawn(i + 1)
        else:
            self.sizes.append(n)
            choice = self._given.get(i, 0) % n
        if choice:
            self.made[i] = choice
        return choice

    def _next_drawn(self, i: int) -> int:
        """Draws which decision from number `i` on is drawn: one number in the place of one for each plain decision."""
        if not self._log_of_plain:
            return sys.maxsize
        return i + int(math.log(1.0 - self._draw()) / self._log_of_plain)


class Process:
    """Tasks that are killed, frozen and started together.

    Attributes:
        is_dead: True once it was killed: its tasks never run again.
        frozen_until: Its tasks do not run before this time.
    """

    __slots__ = ("frozen_until", "is_dead", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.frozen_until = 0.0

    def __repr__(self) -> str:
        return self.name


class Task:
    """One thread of a process."""

    __slots__ = ("glet", "is_done", "is_parked", "joiners", "n_waits", "name", "number", "process", "was_woken")

    def __init__(self, process: Process, name: str, number: int) -> None:
        self.process = process
        self.name = name
        self.number = number
        self.is_done = False
        self.is_parked = False
        # The number of its waits, by which a timer of an earlier wait knows that it has no effect.
        self.n_waits = 0
        # True if the last wait ended by a wake-up; False: by its deadline.
        self.was_woken = False
        self.joiners: list[Task] = []
        self.glet: greenlet.greenlet | None = None

    def __repr__(self) -> str:
        return f"{self.process}/{self.name}"

    def stack(self) -> str:
        """Returns where it waits."""
        frame = None if self.glet is None else self.glet.gr_frame
        lines = traceback.format_stack(frame)[-6:] if frame is not None else ["  (it has not begun)\n"]
        return "".join(lines)


class Scheduler:
    """Runs tasks until all have ended or wait for each other. There is one at a time.

    Args:
        choices: Decides which task goes on.
        max_steps: After so many steps the schedule has failed: it would never end.
        max_time_s: Likewise, by its own clock.

    Attributes:
        now: Its clock, in seconds.
        current: The task that runs; None outside of tasks.
        n_steps: The steps so far.
        is_over: True once `close` was called: nothing waits any more.
        failures: The exceptions that have ended tasks.
    """

    def __init__(self, choices: Choices, *, max_steps: int = 200_000, max_time_s: float = 3_600.0) -> None:
        self.now = 1_000.0
        self.choices = choices
        self.current: Task | None = None
        self.n_steps = 0
        self.is_over = False
        self.failures: list[tuple[Task, BaseException]] = []
        self._max_steps = max_steps
        self._ends_at = self.now + max_time_s
        READY.clear()
        self._timers: list[tuple[float, int, Task, int]] = []
        self._numbers = itertools.count(1)
        self._tasks: dict[Task, None] = {}
        self._hub = greenlet.getcurrent()
        setattr(builtins, PAUSE, self.pause)
        self._events: deque[tuple[int, Callable[[], None]]] = deque()

    # -- for tasks --

    def spawn(self, process: Process, name: str, target: Callable[[], object], *, delay_s: float = 0.0) -> Task:
        """Begins a task, at once or after a time."""
        task = Task(process, name, next(self._numbers))
        if self.is_over:
            task.is_done = True
            return task
        task.glet = greenlet.greenlet(partial(self._run, task, target), self._hub)
        self._tasks[task] = None
        if delay_s > 0.0:
            task.is_parked = True
            self._set_timer(task, self.now + delay_s)
        else:
            READY.append(task)
        return task

    def pause(self) -> None:
        """Is a switch point: perhaps another task goes on here."""
        task, ready, choices = self.current, READY, self.choices
        if task is None or not ready or self.is_over:
            return
        if choices.n < choices.n_plain:
            choices.n += 1
        elif choice := choices.pick(len(ready) + 1):
            ready.rotate(1 - choice)
            ready.insert(1, task)
            self._hub.switch(True)

    def park(self, deadline: float = math.inf) -> bool:
        """Waits until the task is woken, or until its deadline; returns whether it was woken."""
        task = self.current
        if self.is_over or task is None:
            raise greenlet.GreenletExit
        task.is_parked, task.was_woken = True, False
        task.n_waits += 1
        if deadline < math.inf:
            self._set_timer(task, deadline)
        self._hub.switch(False)
        return task.was_woken

    def sleep(self, seconds: float) -> None:
        """Waits for a time."""
        if not self.is_over:
            self.park(self.now + max(0.0, seconds))

    def wake(self, task: Task) -> None:
        """Ends the wait of a task."""
        if task.is_parked and not task.process.is_dead:
            task.is_parked, task.was_woken = False, True
            READY.append(task)

    # -- for the one that drives --

    def at_step(self, step: int, event: Callable[[], None]) -> None:
        """Has an event happen between two steps. Events are given in their order."""
        self._events.append((step, event))

    @property
    def n_ready(self) -> int:
        """The tasks that could go on now."""
        return len(READY)

    def kill(self, process: Process) -> None:
        """Ends a process between two of its steps."""
        process.is_dead = True
        living = [task for task in READY if not task.process.is_dead]
        READY.clear()
        READY.extend(living)

    def run(self, is_finished: Callable[[], bool]) -> None:
        """Runs until the schedule is finished.

        Args:
            is_finished: Returns whether all that was to happen has. Called after each step.

        Raises:
            ScheduleError: It never ends, or a task has failed.
        """
        ready, events, failures, choices = READY, self._events, self.failures, self.choices
        takes_first = False
        while not is_finished():
            while events and (events[0][0] <= self.n_steps or not (ready or self._timers)):
                events.popleft()[1]()
                takes_first = False
            if not ready and not self._next_timer():
                if events:
                    continue
                raise ScheduleError(f"nobody can go on any more\n{self.waiting()}")
            if not takes_first and len(ready) > 1:
                if choices.n < choices.n_plain:
                    choices.n += 1
                elif choice := choices.pick(len(ready)):
                    ready.rotate(-choice)
            task = ready.popleft()
            self.n_steps += 1
            if task.process.frozen_until > self.now:
                heapq.heappush(self._timers, (task.process.frozen_until, next(self._numbers), task, _FROZEN))
                takes_first = False
                continue
            self.current = task
            assert task.glet is not None
            # A task that has paused has chosen who is next.
            takes_first = task.glet.switch() is True
            self.current = None
            if failures:
                task, error = failures[0]
                raise ScheduleError(f"{task} failed: {type(error).__name__}: {error}") from error
            if self.n_steps > self._max_steps or self.now > self._ends_at:
                raise ScheduleError(f"no end after {self.n_steps} steps and {self.now - 1_000:.0f} s\n{self.waiting()}")

    def waiting(self) -> str:
        """Describes where each task waits."""
        waits = [task for task in self._tasks if not task.is_done and not task.process.is_dead]
        return "\n".join(f"{task}:\n{task.stack()}" for task in waits)

    def close(self) -> None:
        """Ends all tasks."""
        self.is_over = True
        setattr(builtins, PAUSE, _nothing)
        for task in list(self._tasks):
            if task.glet is not None and not task.is_done and task.glet:
                self.current = task
                task.glet.throw(greenlet.GreenletExit)
        self.current = None

    def _set_timer(self, task: Task, at: float) -> None:
        heapq.heappush(self._timers, (at, next(self._numbers), task, task.n_waits))

    def _next_timer(self) -> bool:
        """Lets time go on to the next timer; returns False if there is none."""
        while self._timers:
            at, _, task, n_waits = heapq.heappop(self._timers)
            if task.process.is_dead:
                continue
            if n_waits == _FROZEN:
                self.now = max(self.now, at)
                READY.append(task)
                return True
            if task.is_parked and task.n_waits == n_waits:
                self.now = max(self.now, at)
                task.is_parked, task.was_woken = False, False
                READY.append(task)
                return True
        return False

    def _run(self, task: Task, target: Callable[[], object]) -> None:
        try:
            target()
        except greenlet.GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 - it ends the schedule
            if not self.is_over:
                self.failures.append((task, error))
        finally:
            task.is_done = True
            self._tasks.pop(task, None)
            for joiner in task.joiners:
                self.wake(joiner)
