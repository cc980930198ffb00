"""Measures the bytes of policies in every encoding, and the time to make and to read them, at real updates.

    python -m benchmarks.real_updates [--before 30] [--kept 8]

It trains for a while, and keeps the policies of consecutive updates: what is sent to actors in a real run.
"""

import argparse
import itertools
import time
from collections.abc import Sequence

import torch

from benchmarks.table import Figure, print_table
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import batch_size, make_algorithm
from rollcast.services.policies.bfloat16 import narrow_file
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.delta import decode_delta, encode_delta
from rollcast.services.policies.policies import PolicyState

# The Nature CNN on a game, with the settings of the recipe appo-pong and smaller batches, so that a core makes an
# update in a second or two; MLPs on vectors.
NATURE_CNN = (
    "--recipe",
    "appo-pong",
    "--network",
    "nature_cnn",
    "--n-rollout-steps",
    "32",
    "--envs-per-actor",
    "8",
    "--batch-size",
    "8",
)
MLP_64 = ("--algorithm", "impala", "--env-id", "CartPole-v1", "--hidden-sizes", "[64, 64]")
MLP_256 = ("--algorithm", "impala", "--env-id", "Acrobot-v1", "--hidden-sizes", "[256, 256]")


def policies_of(options: Sequence[str], *, rounding: str, n_before: int, n_kept: int) -> list[PolicyState]:
    """Returns the policies of consecutive updates.

    Args:
        options: Of `rollcast train`.
        rounding: Its --policy-rounding.
        n_before: The updates before the first.
        n_kept: The policies.
    """
    torch.set_num_threads(1)
    settings = TrainSettings.from_command_line("rollcast train", [*options, "--policy-rounding", rounding])
    env_factory = settings.env_factory()
    spaces = probe_spaces(env_factory)
    algorithm = make_algorithm(settings, spaces, torch.device("cpu"))
    actors = SequentialDistributedActors(
        env_factory,
        algorithm.policy,
        n_rollout_steps=settings.n_rollout_steps,
        n_actors=1,
        batch_size=batch_size(settings, spaces),
        envs_per_actor=settings.envs_per_actor,
        seed=0,
    )
    kept: list[PolicyState] = []
    with actors:
        while len(kept) < n_kept:
            batch, *_ = actors.collect_outputs("cpu")
            # As early in a long run: the learning rate has hardly fallen.
            algorithm.update(batch, progress=0.0)
            state = algorithm.policy_state()
            actors.broadcast_updated_policy(state)
            if algorithm.n_updates > n_before:
                kept.append(dict(state))
    return kept


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=int, default=30, help="updates before the first that counts")
    parser.add_argument("--kept", type=int, default=8, help="consecutive updates that count")
    options = parser.parse_args()
    rows = []
    for name, training in (("MLP 64x64", MLP_64), ("MLP 256x256", MLP_256), ("Nature CNN", NATURE_CNN)):
        for rounding in ("bfloat16", "none"):
            policies = policies_of(training, rounding=rounding, n_before=options.before, n_kept=options.kept)
            files = [encode_policy(number, policy).file for number, policy in enumerate(policies, 1)]
            started = time.perf_counter()
            deltas = [encode_delta(file, base) for base, file in itertools.pairwise(files)]
            encoded = time.perf_counter()
            for (base, file), delta in zip(itertools.pairwise(files), deltas, strict=True):
                assert decode_delta(delta, base, n_bytes=len(file), what=name) == file
            decoded = time.perf_counter()
            sizes = list(map(len, deltas))
            rows.append(
                (
                    name,
                    rounding,
                    f"{len(files[0]):,}",
                    f"{len(narrow_file(files[-1])):,}",
                    f"{len(encode_delta(files[-1], None)):,}",
                    Figure(sizes, has_range=True),
                    Figure([(encoded - started) / len(deltas)], ".1f", "ms", scale=1e3),
                    Figure([(decoded - encoded) / len(deltas)], ".1f", "ms", scale=1e3),
                )
            )
    print(f"\n{options.kept} consecutive updates after {options.before}; bytes")
    header = ("policy", "rounding", "full", "bfloat16", "delta to nothing", "delta", "to make one", "to read one")
    print_table(header, rows)


if __name__ == "__main__":
    main()
