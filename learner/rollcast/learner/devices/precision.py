"""Chooses the precision of updates for a device: fp32, TF32 or bfloat16, and the order of images in memory."""

from dataclasses import dataclass
from typing import Final, Literal

import torch

from rollcast.actor.policies.network_arithmetic import NetworkArithmetic
from rollcast.services.errors import ConfigurationError

Precision = Literal["fp32", "tf32", "bf16"]
Switch = Literal["auto", "on", "off"]

# Ampere, the first GPUs with TF32 and bfloat16 in their tensor cores.
_AMPERE: Final = (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateArithmetic:
    """The arithmetic of a learner's updates.

    Attributes:
        precision: fp32: float32 throughout. tf32: float32, but products on a GPU round their factors to 10 bits. bf16:
            hidden layers compute in bfloat16, all else in float32.
        networks: The arithmetic of networks: pass it to `networks_compute` around updates.
    """

    precision: Precision
    networks: NetworkArithmetic


def choose_arithmetic(
    precision: Literal["auto", "fp32", "tf32", "bf16"],
    channels_last: Switch,
    device: torch.device,
    *,
    deterministic: bool = False,
) -> UpdateArithmetic:
    """Chooses the arithmetic of updates.

    Args:
        precision: auto: tf32 on GPUs that support it, except for deterministic runs; else fp32.
        channels_last: The order of images; auto: channels last on GPUs, and on CPUs where gradients are computed.
        device: The learner's device.
        deterministic: True: no rounding unless `precision` asks for it.

    Raises:
        ConfigurationError: The device does not support the precision.
    """
    if precision == "auto":
        precision = "tf32" if _has_tf32(device) and not deterministic else "fp32"
    elif precision == "tf32" and not _has_tf32(device):
        raise ConfigurationError(
            f"--precision tf32 on {_described(device)}; expected a GPU with compute capability 8.0 or more, because "
            "only those have TF32; choose --precision fp32, or auto"
        )
    elif precision == "bf16" and device.type == "cuda" and not _has_tf32(device):
        raise ConfigurationError(
            f"--precision bf16 on {_described(device)}; expected a GPU with compute capability 8.0 or more, because "
            "others emulate bfloat16, slower than float32; choose --precision fp32, or auto"
        )
    orders: dict[Switch, bool | None] = {"on": True, "off": False, "auto": True if device.type == "cuda" else None}
    hidden = torch.bfloat16 if precision == "bf16" else torch.float32
    return UpdateArithmetic(
        precision=precision, networks=NetworkArithmetic(hidden=hidden, channels_last=orders[channels_last])
    )


def set_tf32(arithmetic: UpdateArithmetic) -> None:
    """Sets process-wide whether float32 products and convolutions on GPUs may round to TF32.

    By default, torch rounds only in convolutions. The CPU does not round.
    """
    # The last layers stay in float32 beside bfloat16, and must not round more than asked for.
    allowed = arithmetic.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def _has_tf32(device: torch.device) -> bool:
    """Returns whether a device is a GPU with TF32 and bfloat16."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _AMPERE


def _described(device: torch.device) -> str:
    if device.type != "cuda":
        return f"the device {device}"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, of compute capability {major}.{minor}"
