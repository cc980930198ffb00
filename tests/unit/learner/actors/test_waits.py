from dataclasses import replace

from rollcast.learner.actors.waits import QUIET_S, explain_wait
from rollcast.services.status.status import ActorInfo, ActorState

ACTOR = ActorInfo(actor_id="left", state=ActorState.STREAMING, slot=0, incarnation=1)


def test_a_short_silence_is_nobodys_fault():
    assert explain_wait([replace(ACTOR, idle_s=2.0)], ()) == (
        "rollouts from 1 connected actor (left has been quiet for 2 s)"
    )


def test_a_long_silence_is_the_environments():
    quiet = replace(ACTOR, actor_id="right", idle_s=QUIET_S)
    assert explain_wait([replace(ACTOR, idle_s=1.0), quiet], ()) == (
        "rollouts from 2 connected actors (right has been quiet for 10 s): their environments are slow or hang"
    )
