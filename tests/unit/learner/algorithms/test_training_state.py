from pathlib import Path

import pytest
import torch

from rollcast.learner.algorithms.training_state import read_training_state, write_training_state


def test_what_is_written_is_read(tmp_path: Path):
    tensors = {"weights": torch.arange(6.0).reshape(2, 3).T, "one": torch.tensor(3)}
    write_training_state(tmp_path / "new", tensors, {"n_updates": 7})
    arrays, values = read_training_state(tmp_path / "new")
    assert values == {"n_updates": 7}
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }


def test_what_cannot_be_written_is_an_os_error_whoever_writes(tmp_path: Path):
    (tmp_path / "algorithm.safetensors").mkdir()
    with pytest.raises(OSError, match=r"algorithm\.safetensors"):
        write_training_state(tmp_path, {"weights": torch.zeros(4)}, {})
