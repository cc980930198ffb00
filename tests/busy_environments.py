"""An environment whose process computes in torch at its very end, in a thread that nobody can join."""

import atexit
import functools
import threading

import gymnasium
import torch

_has_begun = threading.Event()


def busy_cartpole() -> gymnasium.Env:
    """Makes CartPole-v1; from then on, the end of the process starts the thread."""
    _compute_at_the_end()
    return gymnasium.make("CartPole-v1")


@functools.cache
def _compute_at_the_end() -> None:
    atexit.register(_begin)


def _begin() -> None:
    threading.Thread(target=_compute, daemon=True).start()
    _has_begun.wait()


def _compute() -> None:
    matrix = torch.eye(60, requires_grad=True)
    while True:
        (matrix @ matrix).sum().backward()
        _has_begun.set()
