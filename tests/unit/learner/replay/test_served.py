import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rollcast.learner.devices.copier import Copier, make_copier
from rollcast.learner.replay.served import ServedReplay
from rollcast.services.replay.batch_assembler import BatchAssembler
from rollcast.services.replay.batch_codec import BatchEncoder
from rollcast.services.replay.replay import ReplayBatch
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, space_leaves
from tests.buffers import make_buffer
from tests.delayed_copier import DelayedCopier
from tests.played_rollouts import SPACES, World, random_ends

T = 4


def served(*, copier_for: Callable[[torch.device], Copier] = make_copier, **settings: object) -> ServedReplay:
    buffer = make_buffer(n_rollout_steps=T, batch_size=8, **{"capacity": 80, **settings})
    world = World(T, has_reset_rows=False, state_size=buffer.state_size, frame_stack=buffer.frame_stack)
    rng = np.random.default_rng(0)
    for _ in range(20):
        buffer.insert(world.play(random_ends(rng, T, 2))[0])
    return ServedReplay(buffer, SPACES, n_rollout_steps=T, copier_for=copier_for)


def draw(replay: ServedReplay, batch_size: int, n_batches: int) -> list[tuple[ReplayBatch, ReplayBatch]]:
    """Batches as they were drawn, and as they came, the same, through one stream's encoder and assembler."""
    batches, encoder, assembler = replay.batches(batch_size), BatchEncoder(deferred=True), BatchAssembler(batch_size)
    drawn = []
    for _ in range(n_batches):
        batch = batches.next(timeout_s=1.0, is_active=lambda: True)
        *_, came = [assembler.add(message) for message in encoder.encode(batch)]
        assert came is not None
        np.testing.assert_equal(dataclasses.asdict(came), dataclasses.asdict(batch))
        drawn.append((batch, came))
    return drawn


def test_served_transitions_arrive_unchanged_through_one_reused_batch():
    drawn = draw(served(), 8, 6)
    assert len({id(batch) for batch, _ in drawn}) == 1
    assert len({came.keys.tobytes() for _, came in drawn}) == 6


def test_served_stacks_arrive_and_their_spaces_are_told():
    replay = served(frame_stack=3)
    spaces = space_leaves(replay.info().spaces[FLAT_SUBSTEP].observation)
    for _, came in draw(replay, 8, 3):
        columns = came.substeps[FLAT_SUBSTEP]
        for path, space in spaces.items():
            assert space.shape[0] == 3
            assert columns.observation[path].shape == (1, 8, *space.shape)
            assert columns.next_observation[path].shape == (8, *space.shape)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sequence_length": 2},
        {"state_size": 3, "sequence_length": 2, "burn_in": 2},
        {"frame_stack": 3, "sequence_length": 2},
    ],
)
def test_served_rollouts_have_their_own_final_observations(settings: dict[str, int]):
    replay = served(entry="rollouts", **settings)
    assert replay.info().spaces == SPACES, "single frames"
    drawn = draw(replay, 4, 12)
    assert len({len(came.final_index) for _, came in drawn}) > 1
    assert len({id(batch) for batch, _ in drawn}) > 1


@pytest.mark.parametrize("settings", [{}, {"entry": "rollouts", "state_size": 3, "sequence_length": 2, "burn_in": 2}])
def test_batches_from_a_device_are_complete_after_one_wait_for_all_copies(settings: dict[str, object]):
    copiers: list[DelayedCopier] = []

    def copier_for(device: torch.device) -> DelayedCopier:
        copiers.append(DelayedCopier())
        return copiers[-1]

    on_device, in_memory = served(place="cpu", copier_for=copier_for, **settings), served(**settings)
    for (_, came), (_, expected) in zip(draw(on_device, 4, 5), draw(in_memory, 4, 5), strict=True):
        np.testing.assert_equal(dataclasses.asdict(came), dataclasses.asdict(expected))
    assert copiers[-1].n_sent >= 5 * 3, "pinned copies, several a batch"
    assert copiers[-1].n_waits == 5
