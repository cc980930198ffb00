import io
from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError, MismatchError
from rollcast.services.policies.saved import encode_saved_policy
from rollcast.tools.export import export
from rollcast.tools.settings import ExportSettings
from tests.unit.actor.exporting.test_exported_policies import VECTOR, Discrete, saved_policy


def test_a_model_that_differs_from_its_policy_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(encode_saved_policy(saved_policy(VECTOR, Discrete(3))))
    monkeypatch.setattr("rollcast.actor.exporting.check.TOLERANCE", 0.0)
    with pytest.raises(MismatchError, match=r"the difference is .*, above 0; no file was written"):
        export(ExportSettings(policy=policy, check=100), io.StringIO())
    with pytest.raises(ConfigurationError, match="--output: there is no folder"):
        export(ExportSettings(policy=policy, output=tmp_path / "nowhere" / "a.onnx"), io.StringIO())
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"]
