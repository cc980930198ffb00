"""A client with environments that dial in, the Python client of `clients/`, which writes down the actions that it gets.

    python -m tests.chaos.playing FILE ADDRESS NAME NUMBER N_ENVS STEP_S

Lines of `seed n_actions`, by the kernel: SIGKILL loses none. A life begins with 0 actions; see `tests.chaos.games`.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.bookkeeping import EPISODE_STEPS, bookkeeping_spaces, observation, reward
from tests.chaos.games import n_lives, read_given, seed_of_life
from tests.processes import ROOT

sys.path.insert(0, str(ROOT / "clients/python"))

import rollcast_play  # it is no package


class Game:
    """An environment of `tests.chaos.bookkeeping`, as a client of any language has it.

    Args:
        opened: The file.
        client: The client's number.
        number: The environment's number at the client.
        life: The number of its next life.
    """

    def __init__(self, opened: int, client: int, number: int, life: int, step_s: float) -> None:
        self._opened, self._client, self._number, self._life, self._step_s = opened, client, number, life, step_s
        self._seed = self._total = 0

    def reset(self, seed: int | None) -> Any:
        """Begins an episode; with a seed, a life."""
        if seed is not None:
            self._seed, self._total = seed_of_life(self._client, self._life, self._number), 0
            self._life += 1
            self._write()
        return rollcast_play.single_turn(observation(self._seed, np.array(self._total)).tolist())

    def step(self, actions: Sequence[Any]) -> Any:
        """Writes the action down, then steps."""
        action, seen = rollcast_play.integer(actions[0]), observation(self._seed, np.array(self._total))
        self._total += 1
        self._write()
        # The time that a step of a simulator takes; nothing is waited for.
        time.sleep(self._step_s)
        done = self._total % EPISODE_STEPS == 0
        return rollcast_play.single_turn(
            observation(self._seed, np.array(self._total), final=done).tolist(),
            reward=float(reward(seen, np.array(action))),
            state=rollcast_play.TERMINATED if done else rollcast_play.RUNNING,
        )

    def _write(self) -> None:
        os.write(self._opened, f"{self._seed} {self._total}\n".encode())


def main(path: str, address: str, name: str, number: str, n_envs: str, step_s: str) -> None:
    """Plays until training ends."""
    lives = n_lives(read_given(Path(path)))
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    games = [Game(opened, int(number), i, lives, float(step_s)) for i in range(int(n_envs))]
    (space,) = bookkeeping_spaces().values()
    box = rollcast_play.box(*([sign * float("inf")] * space.observation.shape[0] for sign in (-1, 1)))
    substep = rollcast_play.SubstepSpaces(
        key="0", observation=box, action=rollcast_play.discrete(int(space.action.n)), n_agents=1
    )
    reason = rollcast_play.Player(games, [substep], name=name).play(address)
    print(reason, flush=True)  # noqa: T201  # to the log of this program


if __name__ == "__main__":
    main(*sys.argv[1:])
