from pathlib import Path

import numpy as np
import pytest
import torch

from rollcast.learner.algorithms.descent import Descent, adam
from rollcast.learner.algorithms.training_state import (
    load_parts,
    read_training_state,
    write_parts,
    write_training_state,
)
from rollcast.learner.ranks.reduction import ALONE
from rollcast.services.errors import ConfigurationError


def test_written_state_is_read_back(tmp_path: Path):
    tensors = {"weights": torch.arange(6.0).reshape(2, 3).T, "one": torch.tensor(3)}
    write_training_state(tmp_path / "new", tensors, {"n_updates": 7})
    arrays, values = read_training_state(tmp_path / "new")
    assert values == {"n_updates": 7}
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }


def test_failed_write_raises_os_error_with_the_file(tmp_path: Path):
    (tmp_path / "algorithm.safetensors").mkdir()
    with pytest.raises(OSError, match=r"algorithm\.safetensors"):
        write_training_state(tmp_path, {"weights": torch.zeros(4)}, {})


def test_reads_the_optimiser_of_older_checkpoints_that_named_no_parameter(tmp_path: Path):
    weights = torch.nn.Parameter(torch.ones(3))
    weights.grad = torch.full((3,), 0.5)
    optimizer = torch.optim.Adam([weights])
    optimizer.step()
    write_parts(tmp_path, {"optimizer": optimizer}, {})
    arrays, _ = read_training_state(tmp_path)
    assert arrays.keys() == {f"optimizer.state.0.{name}" for name in ("exp_avg", "exp_avg_sq", "step")}
    older = {name.replace(".state.0.", "."): array for name, array in arrays.items()}
    restored = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    load_parts({"optimizer": restored}, older, source=tmp_path)
    expected, found = optimizer.state_dict()["state"][0], restored.state_dict()["state"][0]
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def descent_of(module: torch.nn.Module) -> Descent:
    return Descent({"policy": module}, adam(1e-3), max_grad_norm=float("inf"))


def test_a_flat_optimisers_state_is_saved_as_if_parameters_followed_one_another(tmp_path: Path):
    # Older versions had no zeros between the parameters: they wrote what is written here, and it is read.
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    descent = descent_of(module)
    descent.backward([module(torch.ones(1, 3)).sum()], [], count=1, reduction=ALONE)
    descent.step()
    write_parts(tmp_path, {"optimizer": descent}, {})
    arrays, _ = read_training_state(tmp_path)
    moments = arrays["optimizer.state.0.exp_avg"]
    assert moments.shape == (6 + 2 + 2 + 1,)
    flat = descent.parameters
    assert np.array_equal(moments, flat.packed(descent.optimizer.state[flat.vector]["exp_avg"]).numpy())
    restored = descent_of(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)))
    load_parts({"optimizer": restored}, arrays, source=tmp_path)
    expected, found = (made.optimizer.state_dict()["state"][0] for made in (descent, restored))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_refuses_the_state_of_another_networks_optimiser(tmp_path: Path):
    arrays = {"optimizer.state.0.exp_avg": np.zeros(7, np.float32)}
    with pytest.raises(
        ConfigurationError, match=r"exp_avg in checkpoint: .*8 parameters has the shape \[7\]; expected \[8\]"
    ):
        load_parts({"optimizer": descent_of(torch.nn.Linear(3, 2))}, arrays, source=Path("checkpoint"))


def loaded(state: np.ndarray) -> torch.Generator:
    """A generator that was seeded with 3, after loading this state."""
    generator = torch.Generator().manual_seed(3)
    load_parts({"noise": generator}, {"noise": state}, source=Path("checkpoint"))
    return generator


def test_the_state_of_another_device_seeds_the_generator():
    # CUDA's state has 16 bytes: a seed and an offset.
    one, other = np.arange(16, dtype=np.uint8), np.arange(1, 17, dtype=np.uint8)
    drawn = [torch.rand(3, generator=loaded(state)).tolist() for state in (one, one.copy(), other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != torch.rand(3, generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({}, "is missing"),
        ({"noise": np.zeros(4, np.float32)}, r"is float32\[4\]"),
        ({"noise": np.zeros(0, np.uint8)}, r"is uint8\[0\]"),
    ],
)
def test_refuses_what_is_no_state_of_a_generator(arrays: dict[str, np.ndarray], found: str):
    with pytest.raises(ConfigurationError, match=f"the generator 'noise' in checkpoint {found}; expected"):
        load_parts({"noise": torch.Generator()}, arrays, source=Path("checkpoint"))
