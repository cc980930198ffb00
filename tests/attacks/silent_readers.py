"""A learner in a process of its own, whose memory is measured while clients read nothing."""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rollcast.services.limits.limits import Limits
from rollcast.services.policies.codec import EncodedPolicy
from tests.integration.learner_fakes import offer, serve

DEADLINE_S = 60.0


class ServedLearner:
    """The parent's end of it. Used by one thread.

    Args:
        pipe: To the process.
    """

    def __init__(self, pipe: Connection, address: str) -> None:
        self._pipe = pipe
        self.address = address

    def publish(self, version: int, n_bytes: int) -> None:
        """Casts a policy of its own memory."""
        self._ask("publish", version, n_bytes)

    def resident_bytes(self) -> int:
        """The bytes that it holds in memory now."""
        return int(self._ask("resident_bytes"))

    def n_policies(self) -> int:
        """The number of versions of its policy that it holds."""
        return int(self._ask("n_policies"))

    def n_rollouts(self) -> int:
        """The number of rollouts it has accepted; it keeps none."""
        return int(self._ask("n_rollouts"))

    def throttled(self) -> dict[str, int]:
        """The number of times that each limit was met in the last minute."""
        return dict(self._ask("throttled"))

    def _ask(self, *command: object) -> Any:
        self._pipe.send(command)
        assert self._pipe.poll(DEADLINE_S), "the learner's process does not answer"
        return self._pipe.recv()


@contextmanager
def served_learner(limits: Limits) -> Iterator[ServedLearner]:
    """Starts it; ends it at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, limits), name="served-learner")
    process.start()
    theirs.close()
    try:
        assert ours.poll(DEADLINE_S), "the learner's process did not start"
        yield ServedLearner(ours, ours.recv())
    finally:
        ours.close()
        process.join(DEADLINE_S)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(pipe: Connection, limits: Limits) -> None:
    with serve(limits=limits) as learner:
        n_rollouts = 0

        class Sink(list):
            def append(self, _rollout: object) -> None:
                nonlocal n_rollouts
                n_rollouts += 1

        learner.sink.rollouts = Sink()
        learner.sink.join(offer())
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        answers: dict[str, Callable[..., object]] = {
            "publish": lambda version, n_bytes: learner.source.publish(version, {"w": np.full(n_bytes, 1, np.uint8)}),
            "resident_bytes": lambda: int(Path("/proc/self/statm").read_text().split()[1]) * page_bytes,
            "n_policies": lambda: sum(isinstance(held, EncodedPolicy) for held in gc.get_objects()),
            "n_rollouts": lambda: n_rollouts,
            "throttled": lambda: {met.limit: met.times for met in learner.server.refusals.lately()},
        }
        pipe.send(learner.address)
        while True:
            try:
                name, *arguments = pipe.recv()
            except EOFError:
                return
            pipe.send(answers[name](*arguments))
