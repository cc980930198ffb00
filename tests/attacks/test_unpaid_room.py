"""Room is charged for what comes, not for what is declared: hollow actors hold nobody back."""

import contextlib

from rollcast.learner.ingest.queue import RolloutQueue
from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR, Limits
from tests.attacks.hostile_clients import HollowActor
from tests.attacks.limited_calls import throttled
from tests.attacks.served_intake import serve_intake
from tests.integration.learner_fakes import offer
from tests.rollouts import make_rollout

DEADLINE_S = 20.0
N_HOLLOW, N_ROLLOUTS = 40, 50


def test_forty_hollow_actors_hold_no_honest_one_back():
    """Each declares 11 MB; there is room for two of them."""
    limits = Limits(max_rollout_bytes=12 << 20, max_bytes_in_flight=24 << 20)
    queue = RolloutQueue(100)
    with contextlib.ExitStack() as stack:
        client, _ = stack.enter_context(serve_intake(limits, queue))
        hollow = [
            HollowActor(client.address, offer(f"hollow-{number}", process_nonce=number, n_envs=MAX_ENVS_PER_ACTOR))
            for number in range(N_HOLLOW)
        ]
        for actor in hollow:
            stack.callback(actor.close)
        for actor in hollow:
            assert actor.has_declared.wait(DEADLINE_S)
        client.join(offer("honest"))
        uplink = client.open_rollout_stream("honest", 1)
        stack.callback(uplink.cancel)
        responses = uplink.responses()
        next(responses)
        for sequence in range(1, N_ROLLOUTS + 1):
            uplink.send(make_rollout(sequence, actor_id="honest"))
            assert next(responses).acknowledged_sequence == sequence
            assert queue.get(2, DEADLINE_S).rollout.actor_id == "honest"
        assert throttled(client) == set()
