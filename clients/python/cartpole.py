"""CartPole, balanced by a policy that rollcast trains: python cartpole.py ADDRESS NAME N_ENVS SEED EPISODES."""

import argparse
import math
import os
import random
import sys
from collections.abc import Sequence

import grpc

from rollcast.v1.environment_pb2 import AgentAction, EnvironmentTurn
from rollcast.v1.space_pb2 import SubstepSpaces
from rollcast_play import INTERRUPTED, RUNNING, TERMINATED, Player, box, discrete, integer, single_turn

FALLEN = 12 * math.pi / 180
BOUNDS = [4.8, math.inf, 2 * FALLEN, math.inf]
SUBSTEP = SubstepSpaces(key="0", observation=box([-bound for bound in BOUNDS], BOUNDS), action=discrete(2))


class CartPole:
    """A cart that balances a pole (Barto, Sutton and Anderson, 1983), as in gymnasium's CartPole-v1.

    Args:
        seed: The seed of the first episodes; None: the server's seed.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._random = random.Random()
        self._state = [0.0] * 4
        self._n_steps = 0

    def reset(self, seed: int | None) -> EnvironmentTurn:
        """Begins an episode close to the upright position."""
        if seed is not None:
            self._random.seed(seed if self._seed is None else self._seed)
        self._state = [self._random.uniform(-0.05, 0.05) for _ in range(4)]
        self._n_steps = 0
        return single_turn(self._state)

    def step(self, actions: Sequence[AgentAction]) -> EnvironmentTurn:
        """Pushes the cart to the left or to the right for 0.02 s."""
        position, speed, angle, spin = self._state
        force = 10 if integer(actions[0]) == 1 else -10
        sine, cosine = math.sin(angle), math.cos(angle)
        push = (force + 0.05 * spin**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        drive = push - 0.05 * turn * cosine / 1.1
        self._state = [position + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * spin, spin + 0.02 * turn]
        self._n_steps += 1
        if abs(self._state[0]) > 2.4 or abs(self._state[2]) > FALLEN:
            return single_turn(self._state, reward=1, state=TERMINATED, final_position=self._state[0])
        if self._n_steps == 500:
            return single_turn(self._state, reward=1, state=INTERRUPTED, final_position=self._state[0])
        return single_turn(self._state, reward=1, state=RUNNING)


def arguments() -> argparse.Namespace:
    """Returns the arguments of the command line."""
    parser = argparse.ArgumentParser(description="Plays CartPoles until training ends. The token is in ROLLCAST_TOKEN.")
    parser.add_argument("address", nargs="?", default="localhost:50052", help="host and port of the server")
    parser.add_argument("name", nargs="?", default="", help="the name in logs; empty: the server chooses one")
    parser.add_argument("n_envs", nargs="?", type=int, default=1, help="number of environments")
    parser.add_argument("seed", nargs="?", type=int, default=0, help="the first seed; 0: the server's seeds")
    parser.add_argument("episodes", nargs="?", type=int, default=0, help="number of episodes; 0: until training ends")
    return parser.parse_args()


def main() -> int:
    """Plays CartPoles until training ends."""
    options = arguments()
    token = os.environ.get("ROLLCAST_TOKEN", "")
    poles = [CartPole(options.seed + i if options.seed else None) for i in range(options.n_envs)]
    try:
        player = Player(poles, [SUBSTEP], name=options.name, episodes=options.episodes)
        print(player.play(options.address, token=token))
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
