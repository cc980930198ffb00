"""Finds the device on which a vector environment keeps its tensors."""

from gymnasium.vector import VectorEnv


def device_of(vector_env: object) -> str | None:
    """Returns the device of a vector whose observations and rewards are torch tensors, such as `"cuda:0"`.

    GPU simulators such as Isaac Lab, mjlab and ManiSkill have an attribute `device`, a `torch.device` or its name.

    Args:
        vector_env: A vector environment of any kind.

    Returns:
        The device's name; None: the vector returns numpy arrays.
    """
    if not isinstance(vector_env, VectorEnv):
        return None
    device = getattr(vector_env.unwrapped, "device", None)
    is_device = isinstance(device, str) or f"{type(device).__module__}.{type(device).__name__}" == "torch.device"
    return str(device) if is_device else None
