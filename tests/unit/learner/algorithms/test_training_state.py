from pathlib import Path

import pytest
import torch

from rollcast.learner.algorithms.training_state import (
    load_parts,
    read_training_state,
    write_parts,
    write_training_state,
)


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
