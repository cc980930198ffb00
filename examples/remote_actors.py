"""Your own learner for actors on other machines: `python examples/remote_actors.py [HOST:PORT] [UPDATES]`.

On each machine with an actor: `rollcast actor --learner-address LEARNER_HOST:PORT --env-id CartPole-v1`.
"""

import sys

from rollcast.actor import EnvironmentFactory, probe_spaces
from rollcast.learner import Impala, ImpalaSettings, RemoteDistributedActors, ServingOptions
from rollcast.services import PolicySpec


def serve(address: str, n_updates: int) -> None:
    """Makes `n_updates` updates from the rollouts of connected actors, and informs them of the end of training."""
    # the actors make their own environments; this one defines the spaces that they need
    spaces = probe_spaces(EnvironmentFactory("CartPole-v1"))
    algorithm = Impala(spaces, PolicySpec(), ImpalaSettings(), seed=0)
    # for other machines: security=ServerSecurity(tls=...), or ServerSecurity(insecure=True) in a network you trust
    serving = ServingOptions(addresses=(address,))
    with RemoteDistributedActors(
        algorithm.policy, n_rollout_steps=32, batch_size=16, envs_per_actor=16, serving=serving
    ) as actors:
        print(f"actors may connect to {actors.addresses[0]}", flush=True)
        for update in range(n_updates):
            batch, *_ = actors.collect_outputs("cpu")  # waits for actors
            algorithm.update(batch, progress=update / n_updates)
            actors.broadcast_updated_policy(algorithm.policy_state())
        print(f"{n_updates} updates, with {actors.n_actors_alive} actors at the end")


if __name__ == "__main__":
    serve(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051", int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
