"""Makes the policy that an actor acts with: numpy where the network is an MLP on vectors, torch for all others."""

import numpy as np

from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.exploration import EPSILONS
from rollcast.actor.policies.features import feature_layout
from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.services.errors import ProtocolMismatchError
from rollcast.services.policies.policies import AUTO_NETWORK, BUILT_IN_NETWORKS, PolicySpec, SavedPolicy
from rollcast.services.process.installation import require_extra
from rollcast.services.spaces.spaces import EnvironmentSpaces


def make_policy(
    spaces: EnvironmentSpaces,
    spec: PolicySpec,
    *,
    seed: int,
    allowed_network: str = AUTO_NETWORK,
    device: str | None = None,
    slot: int = 0,
) -> Policy:
    """Makes the fastest policy that fits: numpy for an MLP on vectors, torch for everything else.

    Args:
        spaces: The environment's spaces by substep key.
        spec: The architecture, and the meaning of its outputs.
        seed: Seeds the sampling of actions.
        allowed_network: The network this process was started with; no other is imported.
        device: The device that torch computes on, whatever the network; None: the CPU.
        slot: The actor's slot, at least 0; selects its rate of exploration.

    Returns:
        A policy without weights; call `load` next.

    Raises:
        ProtocolMismatchError: If `spec` names a network that is not the allowed one.
        ConfigurationError: If no network fits the spaces, or the network needs torch and this Python has none.
        InvalidSpaceError: If a space is not supported, or not with this head.
    """
    if spec.network not in (*BUILT_IN_NETWORKS, allowed_network):
        raise ProtocolMismatchError(
            f"the learner's policy network is {spec.network!r}; expected {allowed_network!r}, which this actor was "
            "started with; start both with the same network"
        )
    seen = [stacked_space(substep.observation, spec.frame_stack) for substep in spaces.values()]
    is_built_in = spec.network in BUILT_IN_NETWORKS
    if device is None and is_built_in and not any(feature_layout(space, spec.network).images for space in seen):
        from rollcast.actor.policies.numpy_acting import NumpyMlpPolicy

        return NumpyMlpPolicy(spaces, spec, seed=seed, slot=slot)
    if device is not None:
        needs_it = f"acting on {device}"
    else:
        needs_it = "the CNN for images" if is_built_in else f"the policy network {spec.network!r}"
    require_extra("torch", needs_it)
    from rollcast.actor.policies.torch_acting import TorchActingPolicy

    return TorchActingPolicy(spaces, spec, seed=seed, device=device or "cpu", slot=slot)


def make_saved_policy(
    saved: SavedPolicy,
    spaces: EnvironmentSpaces,
    *,
    seed: int,
    allowed_network: str = AUTO_NETWORK,
    device: str | None = None,
) -> Policy:
    """Makes a policy with the weights of a saved one.

    Sampled actions explore at the lowest rate of any actor of its run.

    Args:
        saved: The saved policy.
        spaces: The spaces that it acts in, by substep key.
        seed: Seeds the sampling of actions.
        allowed_network: The `"package.module:factory"` that may be imported; any other is refused.
        device: As for `make_policy`.

    Raises:
        ProtocolMismatchError: The policy has another network than the allowed one, or its weights do not fit the
            spaces.
        ConfigurationError: No network fits the spaces.
        InvalidSpaceError: A space is of a kind that is not supported, or not with this head.
        InvalidTensorError: A weight is not finite.
    """
    epsilons = saved.state.get(EPSILONS)
    slot = 0 if epsilons is None else int(np.argmin(epsilons))
    policy = make_policy(spaces, saved.spec, seed=seed, allowed_network=allowed_network, device=device, slot=slot)
    policy.load(saved.policy_version, saved.state)
    return policy
