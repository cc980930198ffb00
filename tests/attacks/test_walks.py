"""A short part of `make attacks`: every socket of every command, and a fiftieth of what is changed in every field."""

import os

import psutil
import pytest

from tests.attacks import field_walk, socket_walk
from tests.attacks.fields import Sizes
from tests.attacks.fleet import DESCRIPTORS, fleet
from tests.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

ATTACK_S = 0.1


def test_the_fleet_has_every_place_that_listens():
    assert socket_walk.listeners() == set(socket_walk.LISTENERS)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    # Nobody's rate is measured, so the honest leave more to the other tests.
    with fleet(tmp_path_factory.mktemp("fleet"), step_s=0.01) as started:
        yield started


def test_strangers_at_every_socket(started):
    for member in started.members.values():
        assert socket_walk.listening(member) == set(member.ports.values()), member.name
    for attack, attacking in socket_walk.ATTACKS.items():
        before = started.figures()
        for name, port in socket_walk.sockets(started):
            with attacking(started, name, port):
                started.rate(ATTACK_S)
                if attack != socket_walk.IDLE:
                    started.figures(of=name)
                elif name == "learner":
                    # It has descriptors of its own, and goes on writing.
                    assert os.listdir(started.save_checkpoint())
                    assert psutil.Process(started.members[name].process.pid).num_fds() < DESCRIPTORS
        check(before, started.figures(), attack)
    goes_on(started, "after attacks at sockets")


def check(before, after, what):
    n_bytes, n_lines = field_walk.growth(before, after)
    assert n_bytes < field_walk.MAX_GROWTH_BYTES, what
    assert n_lines < field_walk.MAX_LINES, what


def goes_on(started, when):
    steps = started.env_steps()
    wait_until(lambda: started.env_steps() > steps, f"honest steps {when}")


def test_a_fiftieth_of_the_changes_of_every_field(started):
    sizes = Sizes(n_bytes=300_000, n_members=10_000, message_bytes=1_000_000)
    n_sent = 0
    for walked in field_walk.walk(started, sizes, share=0.02, seed=28, asks_all=False):
        what = f"{walked.server}: {walked.method}"
        assert walked.faults == [], what
        n_sent += walked.outcomes.total()
        if walked.after is not None:
            check(walked.before, walked.after, what)
    assert n_sent > 100
