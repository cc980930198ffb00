"""Actors on thin links: a real learner, and actors that ask for policies in other encodings."""

from pathlib import Path

import numpy as np
import pytest

from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.client.client import LearnerClient
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.status.status import ActorState, Phase
from tests.processes import ended, free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow


def streaming(client: LearnerClient) -> dict[str, tuple[str, ...]]:
    """Returns the relays between the learner and each actor that streams, by the actor's name."""
    return {info.actor_id: info.via for info in client.actors() if info.state is ActorState.STREAMING}


def test_actors_in_every_encoding_play_the_policy_that_is_served_and_saved(tmp_path: Path):
    port, relay_port = free_port(), free_port()
    address, through = f"127.0.0.1:{port}", f"127.0.0.1:{relay_port}"
    relay = ("learner", "relay", "--learner-address", address, "--address", through, "--policy-encoding", "delta")
    training = ("--n-rollout-steps", 16, "--batch-size", 8, "--envs-per-actor", 2, "--total-steps", 20_000)
    training += ("--algorithm", "impala")
    learner = (
        *("learner", "learner", "--address", address, "--run-dir", tmp_path, "--when-finished", "serve"),
        *("--policy-rounding", "bfloat16", "--max-policy-lag", 20, "--stop-return", 1e9, *training),
    )
    with running(*learner), running(*relay) as relaying, LearnerClient(address) as client:
        ways = {"full": address, "bfloat16": address, "delta": through}
        actors = [
            ("actor", "--learner-address", way, "--actor-id", encoding, "--policy-encoding", encoding)
            for encoding, way in ways.items()
        ]
        wait_until(lambda: status_of(client).phase is Phase.TRAINING, "the learner")
        client.pause()
        with running(*actors[0]), running(*actors[1]), running(*actors[2]) as last:
            # Else two of them may have played all steps before the third has begun.
            wait_until(lambda: streaming(client).keys() == ways.keys(), "all actors")
            assert streaming(client)["delta"], "it is behind the relay"
            # Training may be over before one that subscribes later has had several versions.
            subscriptions = []
            for takes in ((), (PolicyEncoding.BFLOAT16,), (PolicyEncoding.DELTA,)):
                subscriptions.append(iter(client.subscribe_policy(assembler=PolicyAssembler(encodings=takes))))
                next(subscriptions[-1])
            client.resume()
            for policies in subscriptions:
                version = 0
                while version <= 20:
                    version, state = next(policies)
                    for array in state.values():
                        assert array.dtype != np.float32 or not (array.view(np.uint32) & 0xFFFF).any()
                policies.close()
            wait_until(lambda: client.status().phase is Phase.FINISHED, "the end of training")
            assert ended(last) == 0
            assert ended(relaying) == 0
        taken = {info.actor_id: info.rollouts for info in client.actors()}
        assert set(taken) == {"full", "bfloat16", "delta"}
        assert all(taken.values()), taken
        assert client.status().rejected_rollouts == 0
        version, served = client.get_policy()
        saved = RunDirectory(tmp_path).read_policy("last")
        assert version == saved.policy_version
        for name, array in served.items():
            np.testing.assert_array_equal(saved.state[name], array, strict=True)
