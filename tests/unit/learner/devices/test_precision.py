"""The precision of updates: its choice for a device, and each algorithm's update beside the one in float32."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rollcast.actor.policies.network_arithmetic import NetworkArithmetic, networks_compute
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.descent import FlatParameters
from rollcast.learner.batch import Batch
from rollcast.learner.devices.precision import choose_arithmetic, set_tf32
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.batches import random_batch
from tests.every_algorithm import make_algorithm
from tests.tolerances import tf32_as_it_was

T, B = 5, 4
CPU = torch.device("cpu")
BF16 = NetworkArithmetic(hidden=torch.bfloat16)
_IMAGE = Box(0, 255, (44, 44, 3), np.uint8)
_FRAME = Box(0, 255, (44, 44), np.uint8)
_VECTOR = Box(-np.inf, np.inf, (5,), np.float32)
_BOX = Box(-1.0, 1.0, (2,), np.float32)
_PASSES = {"n_epochs": 1, "minibatch_steps": T * B}

# The amount by which an update in bfloat16 may differ from the one in float32: the length of the difference of the
# gradients, as a share of the gradient's. bfloat16 rounds each number to 8 bits, a share of 0.004; the sum over a batch
# of 20 rows cancels most of the gradient, and not the rounding. 0.15 are a cosine of 0.99. Found: at most 0.10.
TOLERANCE = 0.15
# The same for TF32, which rounds the factors of products to 11 bits: a stand-in on the CPU that rounds them so differs
# by 0.026 at most, an H200 by 0.033.
TF32_TOLERANCE = 0.05
# The same where only the order of images in memory differs: convolutions then add in another order.
ORDER_TOLERANCE = 1e-4

_OWN = PolicySpec(network="tests.unit.learner.devices.test_precision:own_network")
CASES = {
    "impala, image": ("impala", {"share_torso": True}, _IMAGE, Discrete(3), PolicySpec()),
    "impala, two torsos": ("impala", {}, _IMAGE, Discrete(3), PolicySpec(network="impala_resnet")),
    "impala, frames": ("impala", {}, _FRAME, Discrete(3), PolicySpec(frame_stack=4)),
    "impala, vector": ("impala", {}, _VECTOR, _BOX, PolicySpec()),
    "impala, lstm": ("impala", {}, _IMAGE, Discrete(3), PolicySpec(recurrence="lstm")),
    "impala, own": ("impala", {}, _VECTOR, Discrete(3), _OWN),
    "ppo, image": ("ppo", _PASSES, _IMAGE, Discrete(3), PolicySpec()),
    "ppo, gru": ("ppo", _PASSES, _VECTOR, Discrete(3), PolicySpec(recurrence="gru")),
    "appo, image": ("appo", {**_PASSES, "share_torso": True}, _IMAGE, Discrete(3), PolicySpec()),
    "dqn, image": ("dqn", {}, _IMAGE, Discrete(3), PolicySpec()),
    "dqn, own": ("dqn", {}, _VECTOR, Discrete(3), _OWN),
    "r2d2, vector": ("r2d2", {}, _VECTOR, Discrete(3), PolicySpec(recurrence="lstm")),
    "sac, vector": ("sac", {}, _VECTOR, _BOX, PolicySpec()),
    "sac, norms": ("sac", {"critic_layer_norm": True}, _VECTOR, _BOX, PolicySpec()),
    "sac, image": ("sac", {}, _IMAGE, Discrete(3), PolicySpec()),
    "sac, own": ("sac", {}, _VECTOR, _BOX, _OWN),
}
WITH_IMAGES = [name for name, case in CASES.items() if case[2] is not _VECTOR]


def own_network(observation_space: Box, n_outputs: int) -> torch.nn.Module:
    """An MLP of one's own."""

    class Own(torch.nn.Sequential):
        def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().forward(observation[""])

    return Own(torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, n_outputs))


def made(name: str, device: str = "cpu") -> tuple[Algorithm, Batch]:
    """Returns an algorithm, and a batch for it."""
    kind, settings, observation, action, spec = CASES[name]
    spaces = {FLAT_SUBSTEP: SubstepSpaces(observation=observation, action=action)}
    algorithm = make_algorithm(kind, spaces, spec, device=device, seed=1, **settings)
    is_transitions = kind in ("dqn", "sac")
    batch = random_batch(
        spaces,
        n_steps=1 if is_transitions else T,
        n_envs=T * B if is_transitions else B,
        n_final=0 if is_transitions else 3,
        state_size=spec.state_size,
        frame_stack=spec.frame_stack,
        device=device,
    )
    return algorithm, batch


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The gradients of every backward pass, in their order."""
    found: list[torch.Tensor] = []
    backward: Callable[..., torch.Tensor] = FlatParameters.backward

    def recording(self: FlatParameters, *arguments: object) -> torch.Tensor:
        gradient = backward(self, *arguments)
        found.append(gradient.clone())
        return gradient

    monkeypatch.setattr(FlatParameters, "backward", recording)
    return found


def gradient_of_update(
    name: str, arithmetic: NetworkArithmetic, found: list[torch.Tensor], device: str = "cpu"
) -> torch.Tensor:
    """Returns the gradients of one update, one after the other."""
    found.clear()
    algorithm, batch = made(name, device)
    with networks_compute(arithmetic):
        algorithm.update(batch, progress=0.0)
    for parameter in algorithm.policy.parameters():
        assert parameter.dtype == torch.float32
    return torch.cat(found)


def relative_difference(gradient: torch.Tensor, expected: torch.Tensor) -> float:
    assert gradient.dtype == torch.float32
    return float((gradient - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", CASES)
def test_update_in_bf16_is_that_in_fp32_to_the_stated_tolerance(name, gradients):
    expected = gradient_of_update(name, NetworkArithmetic(), gradients)
    assert 1e-6 < relative_difference(gradient_of_update(name, BF16, gradients), expected) < TOLERANCE


# Without a word of the order, it is that of the batch, as if it were set to False.
@pytest.mark.parametrize(("name", "channels_last"), [*((name, True) for name in WITH_IMAGES), ("impala, image", False)])
def test_order_of_images_in_memory_changes_rounding_only(name, channels_last, gradients):
    expected = gradient_of_update(name, NetworkArithmetic(), gradients)
    ordered = gradient_of_update(name, NetworkArithmetic(channels_last=channels_last), gradients)
    assert relative_difference(ordered, expected) < ORDER_TOLERANCE


def test_update_in_bf16_gives_the_same_bits_twice(gradients):
    first = gradient_of_update("impala, image", BF16, gradients)
    assert torch.equal(first, gradient_of_update("impala, image", BF16, gradients))


def test_auto_on_the_cpu_is_the_arithmetic_of_networks_without_a_learner():
    chosen = choose_arithmetic("auto", "auto", CPU)
    assert chosen.precision == "fp32"
    assert chosen.networks == NetworkArithmetic()


def test_channels_last_is_as_asked_for():
    orders = {switch: choose_arithmetic("fp32", switch, CPU).networks.channels_last for switch in ("auto", "on", "off")}
    assert orders == {"auto": None, "on": True, "off": False}


def test_tf32_on_the_cpu_is_refused():
    with pytest.raises(ConfigurationError, match=r"--precision tf32 on the device cpu; expected a GPU with compute"):
        choose_arithmetic("tf32", "auto", CPU)


@pytest.mark.parametrize(
    ("capability", "deterministic", "expected"),
    [((9, 0), False, "tf32"), ((8, 0), False, "tf32"), ((9, 0), True, "fp32"), ((7, 5), False, "fp32")],
)
def test_auto_on_a_gpu_is_tf32_where_there_is_one_and_nothing_is_deterministic(
    monkeypatch, capability, deterministic, expected
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    chosen = choose_arithmetic("auto", "auto", torch.device("cuda"), deterministic=deterministic)
    assert (chosen.precision, chosen.networks) == (expected, NetworkArithmetic(channels_last=True))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_gpu_without_the_precision_is_refused_by_its_name(monkeypatch, precision):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    with pytest.raises(ConfigurationError, match=rf"--precision {precision} on Tesla V100, of compute capability 7.0"):
        choose_arithmetic(precision, "auto", torch.device("cuda"))


@pytest.fixture
def _tf32_as_it_was() -> Iterator[None]:
    with tf32_as_it_was():
        yield


@pytest.mark.usefixtures("_tf32_as_it_was")
def test_tf32_is_allowed_only_if_it_is_chosen():
    chosen = choose_arithmetic("fp32", "auto", CPU)
    set_tf32(chosen)
    assert not torch.backends.cudnn.allow_tf32
    set_tf32(dataclasses.replace(chosen, precision="tf32"))
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.usefixtures("_tf32_as_it_was")
def test_update_on_a_gpu_is_that_in_fp32_on_the_cpu_to_the_stated_tolerance(name, precision, gradients):
    if CASES[name][0] == "sac" and CASES[name][3] is _BOX:
        pytest.skip("the noise of a generator on a GPU is another")
    expected = gradient_of_update(name, NetworkArithmetic(), gradients)
    arithmetic = choose_arithmetic(precision, "auto", torch.device("cuda"))
    set_tf32(arithmetic)
    gradient = gradient_of_update(name, arithmetic.networks, gradients, "cuda").cpu()
    assert (
        relative_difference(gradient, expected) < {"fp32": 1e-3, "tf32": TF32_TOLERANCE, "bf16": TOLERANCE}[precision]
    )
