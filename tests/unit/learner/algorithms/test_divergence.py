import pytest
import torch

from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.services.errors import RollcastError
from tests.delayed_copier import DelayedCopier


def watch_by(copier: DelayedCopier | None = None) -> DivergenceWatch:
    device = torch.device("cpu")
    return DivergenceWatch(("policy loss", "value loss"), device=device, advice="Do less.", copier=copier)


@pytest.fixture
def watch() -> DivergenceWatch:
    return watch_by()


def test_finite_numbers_pass(watch):
    for value in (0.0, -1e30, 1e30):
        watch.observe(torch.tensor(value), torch.tensor(value))
    watch.check()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_error_names_diverged_value_and_stays(watch, value):
    with pytest.raises(RollcastError, match=r"within 1 updates: value loss not finite; .* Do less\."):
        watch.observe(torch.tensor(1.0), torch.tensor(value))
    with pytest.raises(RollcastError, match="within 2 updates: value loss"):
        watch.observe(torch.tensor(1.0), torch.tensor(1.0))
    watch.clear()
    watch.check()


def update(watch: DivergenceWatch, value: float = 1.0) -> None:
    watch.observe(torch.tensor(1.0), torch.tensor(value))
    watch.end_update()


def test_a_device_is_looked_at_every_64_updates_by_a_copy_that_was_made_meanwhile():
    copier = DelayedCopier()
    watch = watch_by(copier)
    for _ in range(127):
        update(watch)
    assert (copier.n_sent, copier.n_waits) == (1, 0), "nothing has waited for the device"
    assert copier.n_stream_waits == 0, "and no update for a copy"
    update(watch)
    assert (copier.n_sent, copier.n_waits) == (2, 1), "for the copy of 64 updates ago"


def test_what_a_device_has_recorded_is_found_at_the_look_after_the_next():
    watch = watch_by(DelayedCopier())
    for _ in range(64):
        update(watch)
    update(watch, float("nan"))
    for _ in range(126):
        update(watch)
    with pytest.raises(RollcastError, match="within 192 updates: value loss"):
        update(watch)
    with pytest.raises(RollcastError, match="value loss"):
        watch.check()


def test_a_copy_from_before_networks_were_loaded_is_forgotten():
    watch = watch_by(DelayedCopier())
    for _ in range(64):
        update(watch, float("nan"))
    watch.clear()
    for _ in range(128):
        update(watch)
