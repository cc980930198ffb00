from pathlib import Path

import pytest
import torch

from rollcast.learner.algorithms.training_state import read_training_state, write_training_state


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
