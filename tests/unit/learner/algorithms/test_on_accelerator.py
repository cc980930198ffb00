"""Every algorithm on a device that is not the CPU: same numbers, no mixed devices, no waits, few operations.

The device is `tests.accelerator`; `test_on_cuda.py` has the same cases on a real one.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.divergence import DivergenceWatch
from tests.accelerator import Accelerator
from tests.every_algorithm import CASES, PARTS, same_state, without_noise

pytestmark = pytest.mark.slow

# Operations of one update, at T = 6, B = 4, or 8 transitions: each is at least one launch of a kernel, and takes about
# 5 us of the host's time. PPO and APPO make four steps of the optimiser in an update. A memory costs a few operations
# for each of the T rows; V-trace and the scale of returns cost three for each doubling of T. Measured; an update may
# take up to 3 % more, and not less than 10 % under it, so that the table stays true. Lower a number with pride; raise
# it with a reason.
OPERATIONS = {
    "impala": 165,
    "impala: rmsprop, normalised advantages": 176,
    "impala: box, all normalised": 215,
    "impala: mixed observations, several actions": 269,
    "impala: binary actions": 195,
    "impala: masks": 175,
    "impala: memory": 385,
    "impala: actions of others": 183,
    "impala: gru, frame stacks": 414,
    "impala: images": 233,
    "impala: residual network": 374,
    "ppo": 486,
    "ppo: box, all normalised": 674,
    "ppo: a smaller last minibatch": 698,
    "ppo: memory": 1327,
    "ppo: images": 595,
    "ppo: masks": 527,
    "ppo: two substeps": 1044,
    "appo": 507,
    "appo: actions of others": 516,
    "appo: memory": 1340,
    "dqn": 91,
    "dqn: masks, normalised": 134,
    "dqn: mixed observations": 114,
    "dqn: images": 97,
    "dqn: two substeps": 180,
    "r2d2": 450,
    "r2d2: gru, masks, frame stacks": 467,
    "sac: discrete": 156,
    "sac: discrete, masks": 180,
    "sac: box": 223,
    "sac: box, ensemble": 251,
    "sac: images": 308,
    "sac: two substeps": 404,
}
_MOST, _LEAST = 1.03, 0.9


@pytest.mark.parametrize("name", CASES)
def test_an_update_gives_the_cpus_bits_without_waiting_within_its_budget(name: str):
    case = CASES[name]
    with Accelerator() as accelerator:
        algorithm, batches = case.make(accelerator.device), case.batches(accelerator.device)
        case.update(algorithm, batches, progress=0.2)  # makes the optimisers' state
        with accelerator.counting() as cost:
            metrics = case.update(algorithm, batches, progress=0.3)
        assert cost.waits == []
        assert cost.copies == []
        budget, n = OPERATIONS[name], cost.operations.total()
        assert _LEAST * budget <= n <= _MOST * budget, f"{n} operations; {cost.operations.most_common()}"
        state = algorithm.policy_state()
        found = {key: float(value) for key, value in metrics.items()}
    twin, batches = case.make("cpu"), case.batches("cpu")
    for progress in (0.2, 0.3):
        metrics = case.update(twin, batches, progress=progress)
    assert found == {key: float(value) for key, value in metrics.items()}
    assert same_state(state, twin.policy_state())
    assert all(np.isfinite(array).all() for array in state.values())


# What is moved where is the same for every part: one way for each, the other for one of each kind of optimiser.
@pytest.mark.parametrize(
    ("name", "to_cpu"),
    [
        *((name, False) for name in PARTS if "images" not in name and name != "dqn: two substeps"),
        *((name, True) for name in ("impala: rmsprop, normalised advantages", "r2d2", "sac: box")),
    ],
)
def test_a_checkpoint_of_one_device_goes_on_upon_another(name: str, to_cpu: bool, tmp_path: Path):
    case = CASES[name]
    with Accelerator() as accelerator:
        first, second = ("cpu", accelerator.device) if not to_cpu else (accelerator.device, "cpu")
        saved, twin, restored = case.make(first), case.make(second), case.make(second, seed=9)
        case.update(saved, case.batches(first))
        case.update(twin, case.batches(second))
        saved.save(tmp_path)
        restored.load(tmp_path)
        assert restored.n_updates == saved.n_updates
        assert same_state(without_noise(restored), without_noise(saved))
        # Generators draw other numbers on another kind of device; all else goes on to the bit.
        for algorithm in (restored, twin):
            reseed(algorithm)
            case.update(algorithm, case.batches(second, seed=1), progress=0.5)
        assert same_state(without_noise(restored), without_noise(twin))


@pytest.mark.parametrize("name", ["ppo", "sac: box"])
def test_a_generator_of_another_device_draws_the_same_after_each_load(name: str, tmp_path: Path):
    case = CASES[name]
    with Accelerator() as accelerator:
        saved = case.make(accelerator.device)
        case.update(saved, case.batches(accelerator.device))
        saved.save(tmp_path)
    states = []
    for seed in (1, 2):
        restored = case.make("cpu", seed=seed)
        restored.load(tmp_path)
        case.update(restored, case.batches("cpu"))
        states.append(restored.policy_state())
    assert same_state(*states)


def reseed(algorithm: Algorithm) -> None:
    for learner in getattr(algorithm, "_learners", {"": algorithm}).values():
        if (generator := getattr(getattr(learner, "_surrogate", learner), "_generator", None)) is not None:
            generator.manual_seed(3)


# -- the suite finds what it is for --


def update_with(monkeypatch: pytest.MonkeyPatch, spoil) -> None:
    """Makes an update of DQN with `spoil` called on its loss in the middle."""
    case = CASES["dqn"]
    with Accelerator() as accelerator:
        algorithm, batches = case.make(accelerator.device), case.batches(accelerator.device)
        monkeypatch.setattr(DivergenceWatch, "observe", lambda self, loss, norm: spoil(loss))
        with accelerator.counting() as cost:
            case.update(algorithm, batches)
        assert cost.waits == []
        assert cost.copies == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda loss: loss.item(),
        lambda loss: float(loss),
        lambda loss: bool(loss > 0),
        lambda loss: loss.tolist(),
        lambda loss: loss.cpu(),
        lambda loss: torch.zeros(()).copy_(loss),
        lambda loss: loss[None][loss[None] > 0],
        lambda loss: loss[None].nonzero(),
        lambda loss: torch.equal(loss, loss),
        lambda loss: torch.tensor([1.0], device=loss.device),
        lambda loss: torch.ones(2).to(loss.device),
        lambda loss: torch.empty_like(loss).copy_(torch.ones(())),
        lambda loss: loss.new_tensor([1.0, 2.0]),
        lambda loss: torch.multinomial(loss.detach().abs()[None] + 1.0, 1),
    ],
)
def test_a_hidden_wait_is_found(spoil, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(AssertionError):
        update_with(monkeypatch, spoil)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda loss: loss + torch.ones(2),
        lambda loss: torch.cat([loss[None], torch.ones(1)]),
        lambda loss: loss[None][torch.zeros(1, dtype=torch.int64)],
        lambda loss: torch.randn(2, generator=torch.Generator(), device=loss.device),
        lambda loss: torch.randn(2, generator=torch.Generator(device=loss.device), device="cpu"),
    ],
)
def test_mixed_devices_are_refused(spoil, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(RuntimeError, match=r"same device|expected a generator"):
        update_with(monkeypatch, spoil)


@pytest.mark.parametrize(
    "assign",
    [
        lambda numbers, places: numbers.__setitem__(places, 1.0),
        lambda numbers, places: numbers.__setitem__((places, slice(None)), True),
        lambda numbers, places: numbers.__setitem__(([0, 2],), 1),
        lambda numbers, places: numbers.__setitem__((0, places), torch.ones(())),
        lambda numbers, places: numbers.__setitem__((-1, -1), 1.0),
        lambda numbers, places: numbers[0, 0].__setitem__(..., 1.0),
    ],
)
def test_a_number_that_cuda_would_copy_with_a_wait_is_refused(assign):
    with Accelerator() as accelerator:
        numbers = torch.zeros(3, 3, device=accelerator.device)
        places = torch.arange(2, device=accelerator.device)
        with pytest.raises(RuntimeError, match=r"a number assigned .* CUDA would wait"):
            assign(numbers, places)


def test_a_number_that_cuda_fills_in_is_let_through():
    with Accelerator() as accelerator:
        numbers = torch.zeros(3, 3, device=accelerator.device)
        with accelerator.counting() as cost:
            numbers[0] = 1.0
            numbers[:, 1:2] = 2.0
            numbers[numbers > 1.5] = 3.0
            numbers[2, 0] = numbers[0, 0]
        assert cost.waits == cost.copies == []
        assert numbers.tolist() == [[1.0, 3.0, 1.0], [0.0, 3.0, 0.0], [1.0, 3.0, 0.0]]


def test_work_that_is_fine_is_let_through(monkeypatch: pytest.MonkeyPatch):
    update_with(monkeypatch, lambda loss: torch.where(loss > 0, loss * 2, torch.zeros(())).clamp_(max=1.0))
