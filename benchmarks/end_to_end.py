"""Measures training end to end: two actors of 64 environments and one learner on two cores, against their upper bound.

    python -m benchmarks.end_to_end [--seconds 10] [--rounds 3]

The upper bound of two cores is `2 / (1/acting + 1/learning)`: every environment step costs a core `1/acting` seconds in
an actor and `1/learning` seconds in the learner. Both rates are measured in the same run, on one core each: acting with
the worker that the actors run, learning with prepared batches.
"""

import argparse
import multiprocessing
import os
import time
from multiprocessing.connection import Connection

from benchmarks.table import Figure, print_table
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.make import make_policy
from rollcast.actor.threads import limit_threads
from rollcast.actor.vector.make import make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.services.policies.policies import PolicySpec

N_ACTORS = 2
N_ENVS = 64
ENV_ID = "CartPole-v1"


def measure_acting(vectorization: str, n_steps: int, seconds: float, out: Connection) -> None:
    """Measures one actor on one core that sends nothing, in environment steps per second."""
    from rollcast.actor.vector.make import probe_spaces

    os.sched_setaffinity(0, {0})
    factory = EnvironmentFactory(ENV_ID, vectorization=vectorization)
    policy = make_policy(probe_spaces(factory), PolicySpec(), seed=0)
    policy.load(1, _initial_state(factory))
    limit_threads(1)
    worker = RolloutWorker(
        make_vector_env(factory, N_ENVS), policy, n_steps, actor_id="bench", incarnation=1, env_seed=0
    )
    worker.collect()
    started, env_steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        env_steps += worker.collect().n_env_steps
    out.send_bytes(str(env_steps / (time.perf_counter() - started)).encode())


def measure_learning(vectorization: str, n_steps: int, batch_size: int, seconds: float, out: Connection) -> None:
    """Measures one learner on one core with prepared batches, in environment steps per second."""
    import torch

    from rollcast.actor.vector.make import probe_spaces
    from rollcast.learner.actors.sequential import SequentialDistributedActors
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.algorithms.impala_settings import ImpalaSettings

    os.sched_setaffinity(0, {0})
    torch.set_num_threads(1)
    factory = EnvironmentFactory(ENV_ID, vectorization=vectorization)
    algorithm = Impala(probe_spaces(factory), PolicySpec(), ImpalaSettings(), seed=0)
    with SequentialDistributedActors(
        factory, algorithm.policy, n_steps, 1, batch_size, envs_per_actor=N_ENVS
    ) as actors:
        batches = [actors.collect_outputs("cpu")[0] for _ in range(2)]
        for batch in batches:
            algorithm.update(batch, progress=0.0)
        started, env_steps = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            for batch in batches:
                algorithm.update(batch, progress=0.0)
                algorithm.policy_state()
                env_steps += batch.n_env_steps
        out.send_bytes(str(env_steps / (time.perf_counter() - started)).encode())


def measure_end_to_end(vectorization: str, n_steps: int, batch_size: int, seconds: float, out: Connection) -> None:
    """Measures a learner with two local actors: environment steps per second, and the mean policy lag."""
    import torch

    from rollcast.actor.vector.make import probe_spaces
    from rollcast.learner.actors.subproc import SubprocDistributedActors
    from rollcast.learner.algorithms.impala import Impala
    from rollcast.learner.algorithms.impala_settings import ImpalaSettings
    from rollcast.learner.experience.experience import FreshExperience
    from rollcast.learner.experience.progress import TrainingProgress

    torch.set_num_threads(1)
    factory = EnvironmentFactory(ENV_ID, vectorization=vectorization)
    algorithm = Impala(probe_spaces(factory), PolicySpec(), ImpalaSettings(), seed=0)
    with SubprocDistributedActors(
        factory, algorithm.policy, n_steps, N_ACTORS, batch_size, 1.0, envs_per_actor=N_ENVS
    ) as actors:

        def train_for(duration_s: float) -> TrainingProgress:
            progress, source = TrainingProgress(), FreshExperience(actors)
            started = time.perf_counter()
            while time.perf_counter() - started < duration_s:
                experience = source.next("cpu")
                algorithm.update(experience.batch, progress=0.0)
                progress.record(experience)
                actors.broadcast_updated_policy(algorithm.policy_state())
            return progress

        train_for(2.0)
        now = train_for(seconds).snapshot()
    out.send_bytes(f"{now.env_steps / now.seconds} {now.policy_lag_mean} {now.waiting_fraction}".encode())


def _initial_state(factory: EnvironmentFactory) -> dict:
    from rollcast.actor.policies.trainable import TorchPolicy
    from rollcast.actor.vector.make import probe_spaces

    return dict(TorchPolicy(probe_spaces(factory), PolicySpec()).state_arrays())


def in_process(target, *args) -> list[float]:
    """Runs a measurement in its own process, so that it leaves no threads or caches to the next one."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*args, sender))
    process.start()
    sender.close()
    try:
        return [float(word) for word in receiver.recv_bytes().split()]
    finally:
        process.join(30)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median is printed")
    parser.add_argument("--n-rollout-steps", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()
    rows = []
    for vectorization, target in (("sync", 100_000), ("entry_point", 300_000)):
        rounds = []
        for _ in range(options.rounds):
            (acting,) = in_process(measure_acting, vectorization, options.n_rollout_steps, options.seconds / 2)
            (learning,) = in_process(
                measure_learning, vectorization, options.n_rollout_steps, options.batch_size, options.seconds / 2
            )
            together, lag, waiting = in_process(
                measure_end_to_end, vectorization, options.n_rollout_steps, options.batch_size, options.seconds
            )
            ceiling = 2 / (1 / acting + 1 / learning)
            rounds.append((acting, learning, together, ceiling, together / ceiling, lag, waiting))
        acting, learning, together, ceiling, ratio, lag, waiting = zip(*rounds, strict=True)
        rows.append(
            (
                vectorization,
                Figure(acting),
                Figure(learning),
                Figure(together),
                f"{target:,}",
                Figure(ceiling),
                Figure(ratio, ".0%", has_range=True),
                Figure(lag, ".2f"),
                Figure(waiting, ".0%"),
            )
        )
    print(
        f"\n{ENV_ID}, MLP 64x64, {N_ACTORS} actors of {N_ENVS} environments, "
        f"T={options.n_rollout_steps}, B={options.batch_size}"
    )
    print_table(
        (
            "vector",
            "acting, 1 core",
            "learning, 1 core",
            "end to end",
            "target",
            "ceiling",
            "ratio (target 65%)",
            "lag",
            "learner waits",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
