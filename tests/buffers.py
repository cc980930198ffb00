"""The builder of replay buffers for every test."""

from collections.abc import Callable

from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.spaces.spaces import EnvironmentSpaces
from tests.played_rollouts import SPACES


def make_buffer(
    spaces: EnvironmentSpaces = SPACES,
    *,
    n_rollout_steps: int = 4,
    batch_size: int = 2,
    n_envs: int = 2,
    state_size: int = 0,
    discount: float = 0.99,
    seed: int = 0,
    place: str | None = None,
    frame_stack: int = 1,
    announce: Callable[[str], None] | None = None,
    **settings: object,
) -> ReplayBuffer:
    """Returns a buffer of 40 entries, or as the settings say.

    Args:
        spaces: Of the environments; by default those of `tests.played_rollouts.World`.
        n_rollout_steps: T of every rollout.
        batch_size: Entries of the batches that will be drawn.
        n_envs: Environments of the largest rollout.
        state_size: S of the recurrent states that it keeps.
        discount: gamma.
        seed: Of what is drawn.
        place: The learner's device, which the columns then lie on; None: they lie in main memory.
        frame_stack: K, the frames that the policy sees at once.
        announce: Called with a line about the memory; None: the line is logged.
        settings: Fields of `ReplaySettings`.
    """
    given = {"capacity": 40, "device": "cpu" if place is None else "learner", **settings}
    return ReplayBuffer(
        ReplaySettings(**given),
        spaces,
        n_rollout_steps=n_rollout_steps,
        batch_size=batch_size,
        n_envs=n_envs,
        state_size=state_size,
        discount=discount,
        seed=seed,
        learner_device=place,
        frame_stack=frame_stack,
        **({} if announce is None else {"announce": announce}),
    )
