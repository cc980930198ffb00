"""A short `make chaos` on the real engine: a learner that is killed, and an actor that is taken off the network."""

from tests.chaos.container_run import run_container_chaos
from tests.e2e.conftest import TAG


def test_containers_that_are_killed_and_disconnected_lose_nothing(images, tmp_path):
    report = run_container_chaos(tmp_path, n_faults=2, n_actors=1, seed=1, short=True, tag=TAG)
    assert report.is_clean, report
    assert [recovery.fault.kind for recovery in report.recoveries] == ["docker_kill", "docker_disconnect"], report
    assert report.notes["lives of the learner"] == 2, report
