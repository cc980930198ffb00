import subprocess
import sys

import pytest
import torch

from rollcast.learner.algorithms.descent import Adam, RMSprop

KINDS = [
    pytest.param(Adam, torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.9), "fused": True}, id="Adam"),
    pytest.param(RMSprop, torch.optim.RMSprop, {"lr": 0.1, "alpha": 0.9}, id="RMSprop"),
]

_TRAIN = """
import sys
import torch
from rollcast.learner.algorithms.descent import Adam, RMSprop

for kind in (Adam, RMSprop):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = kind([parameter])
    parameter.sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    assert "torch._dynamo" not in sys.modules, kind
"""


def steps(kind, options, n_steps, state=None):
    parameter = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 7))
    optimizer = kind([parameter], **options)
    if state is not None:
        optimizer.load_state_dict(state)
    for _ in range(n_steps):
        optimizer.zero_grad()
        (parameter**3).sum().backward()
        optimizer.step()
    return parameter.detach(), optimizer.state_dict()


@pytest.mark.parametrize(("ours", "torchs", "options"), KINDS)
def test_steps_are_those_of_torch_to_the_bit(ours, torchs, options):
    (mine, state), (theirs, expected) = (steps(kind, options, 5) for kind in (ours, torchs))
    assert torch.equal(mine, theirs)
    assert state["param_groups"] == expected["param_groups"]
    # from each other's state
    again = [steps(kind, options, 2, state=taken)[0] for kind, taken in ((ours, expected), (torchs, state))]
    assert torch.equal(*again)


@pytest.mark.slow
def test_nothing_of_torch_compile_is_imported():
    subprocess.run([sys.executable, "-c", _TRAIN], check=True, timeout=60)
