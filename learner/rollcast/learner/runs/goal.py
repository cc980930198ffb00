"""The mean return that is the goal of a run, and ends it."""

import gymnasium


def goal_of(stop_return: float | None, env_id: str) -> float | None:
    """Returns the mean return at which a run ends.

    Args:
        stop_return: That of the run's settings; None: they leave it to the environment.
        env_id: The environment.

    Returns:
        That of the settings, else the one at which gymnasium calls the environment solved; None if there is none.
    """
    if stop_return is not None:
        return stop_return
    spec = gymnasium.registry.get(env_id)
    return spec.reward_threshold if spec is not None else None
