"""`rollcast export`: exports a policy to ONNX."""

from pathlib import Path
from typing import TextIO

import numpy as np
import onnx
from numpy.typing import NDArray

from rollcast.actor.exporting.check import TOLERANCE, check_model
from rollcast.actor.exporting.graph import GraphTensor
from rollcast.actor.exporting.model import build_model
from rollcast.actor.loaded_policy import find_saved_policy
from rollcast.actor.threads import limit_threads
from rollcast.learner.commands.printing import print_table
from rollcast.learner.disk import write_whole
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import saved_policy_path
from rollcast.services.settings.new_files import check_new_file
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.tools.settings import ExportSettings


def export(settings: ExportSettings, out: TextIO) -> int:
    """Exports the policy, prints the file's inputs and outputs, and returns the exit code, 0.

    Args:
        settings: The settings of the command.
        out: Where to print.

    Raises:
        ConfigurationError: There is no such policy, ONNX or the chosen player cannot express it, or the file cannot be
            made.
        MismatchError: The outputs of the model and of the policy differ. No file is written.
        OSError: The file cannot be written.
    """
    check_new_file(settings.output, "--output")
    saved, spaces = find_saved_policy(settings.policy, name=settings.saved_policy, network=settings.network)
    substep = _substep(settings.substep, spaces)
    model = build_model(saved, spaces, substep, settings.names)
    onnx.checker.check_model(model.proto, full_check=True)
    content = model.proto.SerializeToString()
    limit_threads(1)
    agreement = check_model(content, model, saved, spaces, substep, settings.check)
    output = _output(settings)
    write_whole(output, content)
    print_table(
        out,
        [
            ("file", f"{output}, {len(content):,} bytes"),
            ("policy", f"version {saved.policy_version:,}, after {saved.env_steps:,} env steps"),
            *((f"input {tensor.name}", _described(tensor)) for tensor in model.inputs),
            *((f"output {tensor.name}", _described(tensor)) for tensor in model.outputs),
            (
                "checked",
                f"{agreement.n_observations:,} observations, largest difference {agreement.largest_difference:.1g} "
                f"(limit {TOLERANCE:g}), {agreement.n_ties:,} ties",
            ),
            ("onnxruntime", f"{_percentiles(agreement.model_s)} an action, on one thread"),
            ("rollcast", f"{_percentiles(agreement.policy_s)} an action, on one thread"),
        ],
    )
    return 0


def _substep(given: str | None, spaces: EnvironmentSpaces) -> str:
    if given is None and len(spaces) == 1:
        return next(iter(spaces))
    if given is None or given not in spaces:
        raise ConfigurationError(
            f"--substep: {given!r} is given; expected one of {', '.join(spaces)}, the substeps of this policy; "
            "name the one to export"
        )
    return given


def _output(settings: ExportSettings) -> Path:
    if settings.output is not None:
        return settings.output
    policy = settings.policy
    return (saved_policy_path(policy, settings.saved_policy) if policy.is_dir() else policy).with_suffix(".onnx")


def _described(tensor: GraphTensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}: {tensor.meaning}".replace("'", "")


def _percentiles(seconds: NDArray[np.float64]) -> str:
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e6
    return f"p50 {p50:.0f} us, p99 {p99:.0f} us"
