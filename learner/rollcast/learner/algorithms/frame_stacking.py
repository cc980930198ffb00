"""Stacks the single frames of a batch in the way that the policy saw them.

A batch holds every frame once, with the K - 1 frames before the first transition of each trajectory. One gather makes
the stacks on the batch's device.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.learner.batch import Batch, BatchColumns


def stacked_rows(batch: Batch, columns: BatchColumns, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stacks the observations of a batch.

    Args:
        batch: Trajectories `[T, B, ...]`.
        columns: Its observations.
        rows: `[(T + 1) * B + N, ...]` for every leaf, as `trajectories.observations_to_value` arranges single frames.

    Returns:
        The same rows, `[(T + 1) * B + N, K, ...]` for every leaf, oldest frame first; the action mask is unchanged.
    """
    previous = columns.previous_observation
    if previous is None:
        return dict(rows)
    n_previous = next(iter(previous.values())).shape[1]
    index = _frames_of_stacks(batch, n_previous + 1)
    stacks: dict[str, Tensor] = {}
    for path, leaf in rows.items():
        if path == ACTION_MASK:
            stacks[path] = leaf
            continue
        frames = torch.cat([previous[path].transpose(0, 1).flatten(0, 1), leaf])
        stacks[path] = frames.index_select(0, index.flatten()).view(*index.shape, *leaf.shape[1:])
    return stacks


def _frames_of_stacks(batch: Batch, frame_stack: int) -> Tensor:
    """Returns the index of every frame of every stack.

    Args:
        batch: Trajectories `[T, B, ...]`.
        frame_stack: K.

    Returns:
        int64 `[(T + 1) * B + N, K]`: indices of frames. The first (K - 1) * B frames are those before the first
        transitions, the oldest of all trajectories first; the rows follow.
    """
    valid, device = batch.valid, batch.valid.device
    n_steps, n = valid.shape
    n_previous = frame_stack - 1
    first = valid.to(torch.uint8).argmax(dim=0)  # the first transition of each trajectory, [B]
    # As for the recurrent state, `trajectories.sequence_starts`; and the observation after the last step begins an
    # episode if the last step has a final observation of its own.
    ended = batch.terminated | batch.truncated
    begins = torch.zeros(n_steps + 1, n, dtype=torch.bool, device=device)
    begins[1:-1] = ~valid[:-1] | (ended[:-1] & valid[1:])
    # One extra row, for unused final observations.
    has_final = torch.zeros_like(begins)
    # Not by `has_final[...] = True`: for CUDA, torch copies that number from pageable memory, and the host waits.
    has_final.index_put_(batch.final_index.unbind(dim=1), torch.ones_like(has_final[0, 0]))
    begins[-1] = ~valid[-1] | has_final[-2]
    t = torch.arange(n_steps + 1, device=device)[:, None]
    # The row in which each row's episode began; below all others if that was before the first transition.
    start = torch.where(begins & (t > first), t, -frame_stack).cummax(dim=0).values
    # Rows before the first transition are copies of it.
    newest = torch.maximum(t, first)
    of_rows = _positions(newest, start, first, torch.arange(n, device=device), frame_stack=frame_stack, n=n)
    if not batch.final_index.shape[0]:
        return of_rows.flatten(0, 1)
    # A final observation follows its row, in the same episode.
    last, b = batch.final_index.unbind(dim=1)
    of_finals = _positions(newest[last, b] + 1, start[last, b], first[b], b, frame_stack=frame_stack, n=n)
    of_finals[:, -1] = (n_previous + n_steps + 1) * n + torch.arange(len(b), device=device)
    return torch.cat([of_rows.flatten(0, 1), of_finals])


def _positions(newest: Tensor, start: Tensor, first: Tensor, b: Tensor, *, frame_stack: int, n: int) -> Tensor:
    """Returns the indices of the last K frames up to a row, within its episode.

    Args:
        newest: int64 `[...]`, the row, at least `first`.
        start: int64 `[...]`, the row in which its episode began; negative: before the first transition.
        first: int64, broadcast to `[...]`, the first transition of its trajectory.
        b: int64, broadcast to `[...]`, its trajectory.
        frame_stack: K.
        n: B.

    Returns:
        int64 `[..., K]`.
    """
    age = torch.arange(frame_stack - 1, -1, -1, device=newest.device)
    row = torch.maximum(newest[..., None] - age, start[..., None])
    # The frames before a trajectory are those before its first transition.
    frame = torch.where(row < first[..., None], row - first[..., None], row) + frame_stack - 1
    return frame * n + b[..., None]
