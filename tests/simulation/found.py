"""Schedules that have failed once; what was wrong with each is mended, and stays so."""

import dataclasses

from tests.simulation.scenario import Fault, Scenario

_ONE_ACTOR = Scenario(
    setting="queue",
    n_actors=1,
    envs_per_actor=1,
    batch_size=1,
    factor=1.0,
    n_updates=5,
    checkpoint_every=99,
    n_relays=0,
    is_durable=False,
    rate=0.0,
    knows_learner=True,
    faults=(),
)


def _with(setting: str, *faults: Fault) -> Scenario:
    return dataclasses.replace(_ONE_ACTOR, setting=setting, faults=faults)


FOUND = {
    "of two processes of a name, both ended when the learner had forgotten them": _with(
        "queue", Fault(40, "replace an actor", 3), Fault(56, "kill the learner", 1)
    ),
    "in step, another learner waited without an end for what had been played": _with(
        "in_step", Fault(120, "kill the learner", 1)
    ),
    "a message that was lost on a slow link was never missed": _with(
        "in_step",
        Fault(11, "cut a connection", 7134),
        Fault(48, "slow a connection", 8873),
        Fault(277, "lose a message", 30269),
    ),
    "an actor ended when the only message of its subscription was lost": _with("queue", Fault(13, "lose a message", 0)),
    "a relay waited without an end for a policy that was lost on its way": dataclasses.replace(
        _with("on_policy", Fault(62, "lose a message", 2)), n_relays=1
    ),
    "a relay never had a learner when the first message of its stream was lost": dataclasses.replace(
        _with("queue", Fault(14, "lose a message", 1)), n_relays=1, knows_learner=False
    ),
    "an evaluator on a slow link reported for ever": dataclasses.replace(
        _with("queue", Fault(112, "slow a connection", 16097)),
        batch_size=3,
        factor=2.0,
        n_updates=1,
        checkpoint_every=2,
        n_clients=1,
    ),
    "an actor that had lost a version played what was stale from its start": dataclasses.replace(
        _with(
            "lag",
            Fault(35, "lose a message", 7281),
            Fault(134, "lose a message", 14567),
            Fault(217, "lose a message", 41591),
            Fault(341, "lose a message", 63358),
        ),
        batch_size=3,
        factor=2.0,
        n_updates=2,
        checkpoint_every=1,
    ),
    "an actor asked the next learner before it read the last answer of the one before, and had no credit": (
        dataclasses.replace(
            _with(
                "on_policy",
                Fault(13, "slow a connection", 8486),
                Fault(99, "freeze a process", 15203),
                Fault(177, "kill the learner", 23767),
            ),
            batch_size=4,
            n_updates=1,
        )
    ),
    "an evaluator on a slow link reported for ever when the policy that would have confirmed it was lost": (
        dataclasses.replace(
            _with("bounded", Fault(58, "slow a connection", 57449), Fault(98, "lose a message", 48185)),
            batch_size=3,
            factor=1.1,
            n_updates=1,
            checkpoint_every=2,
            n_clients=2,
        )
    ),
}

# The seeds of those that need them: updates and games take as long as these draw. Of others it is their place.
SEEDS = {
    "an actor that had lost a version played what was stale from its start": 176,
    "an evaluator on a slow link reported for ever when the policy that would have confirmed it was lost": 2005464,
}

# Schedules that need their switches: the world and the seed that draw each. A periodic thread waited for less than the
# clock can tell, and so for ever in no time. Since waits have switch points of their own, the seeds draw others.
FOUND_SEEDS = (("system", 110), ("system", 444), ("in rounds", 171), ("durable", 269398038875))
