"""The goal of a run: the mean return that ends it."""

import gymnasium


def goal_of(stop_return: float | None, env_id: str) -> float | None:
    """Returns the mean return at which a run ends.

    Args:
        stop_return: The goal in the run's settings; None: the environment's goal.
        env_id: The environment.

    Returns:
        The goal in the settings, else gymnasium's reward threshold of the environment; None without either.
    """
    if stop_return is not None:
        return stop_return
    spec = gymnasium.registry.get(env_id)
    return spec.reward_threshold if spec is not None else None
