"""Makes the policy of an actor: in numpy if the network is an MLP on vectors, otherwise in torch."""

import numpy as np

from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.exploration import EPSILONS
from rollcast.actor.policies.features import feature_layout
from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.services.errors import ProtocolMismatchError, RollcastError
from rollcast.services.policies.policies import AUTO_NETWORK, BUILT_IN_NETWORKS, PolicySpec, SavedPolicy
from rollcast.services.process.installation import require_extra
from rollcast.services.spaces.spaces import EnvironmentSpaces, check_spaces_match


def make_policy(
    spaces: EnvironmentSpaces,
    spec: PolicySpec,
    *,
    seed: int,
    allowed_network: str = AUTO_NETWORK,
    device: str | None = None,
    slot: int = 0,
) -> Policy:
    """Makes the fastest implementation of a policy: numpy for an MLP on vectors, torch for other networks.

    Args:
        spaces: The environment's spaces by substep key.
        spec: The architecture, and the meaning of the network's outputs.
        seed: Seeds the sampling of actions.
        allowed_network: The network with which this process was started. No other network is imported.
        device: The device on which torch computes, for any network; None: the CPU.
        slot: The actor's slot, at least 0; selects the actor's exploration rate.

    Returns:
        A policy without weights; call `load` next.

    Raises:
        ProtocolMismatchError: If `spec` names a network that is not the allowed one.
        ConfigurationError: If no network fits the spaces, or the network needs torch and torch is not installed.
        InvalidSpaceError: If a space is not supported at all or with this head.
    """
    if spec.network not in (*BUILT_IN_NETWORKS, allowed_network):
        raise ProtocolMismatchError(
            f"the learner's policy network is {spec.network!r}; expected {allowed_network!r}, with which this actor "
            "was started; start both with the same network"
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
    """Makes a policy with the weights of a saved policy.

    Sampled actions explore at the lowest rate of all actors of the policy's run.

    Args:
        saved: The saved policy.
        spaces: The policy's spaces, by substep key.
        seed: Seeds the sampling of actions.
        allowed_network: The only `"package.module:factory"` that may be imported.
        device: See `make_policy`.

    Raises:
        SpacesMismatchError: The policy does not fit the spaces, and its file has others.
        ProtocolMismatchError: The policy's network is not allowed, or the weights do not fit the spaces.
        ConfigurationError: No network fits the spaces.
        InvalidSpaceError: A space is not supported at all or with this head.
        InvalidTensorError: A weight is not finite.
    """
    epsilons = saved.state.get(EPSILONS)
    slot = 0 if epsilons is None else int(np.argmin(epsilons))
    try:
        policy = make_policy(spaces, saved.spec, seed=seed, allowed_network=allowed_network, device=device, slot=slot)
        policy.load(saved.policy_version, saved.state)
    except RollcastError:
        # Other spaces are no error by themselves: bounds may differ, as in a variant of the environment.
        if saved.spaces is not None:
            check_spaces_match(
                saved.spaces, spaces, expected_side="the saved policy", offered_side="the environment to play in"
            )
        raise
    return policy
