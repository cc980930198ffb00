"""Explains which actors a learner waits for."""

from collections.abc import Sequence
from typing import Final

from rollcast.services.status.status import ActorInfo, ActorState

# An actor's environments are blamed once it was quiet for so long. Shorter waits are normal: at a tenth of a second a
# step, a rollout of 32 steps takes some seconds.
QUIET_S: Final = 10.0


def explain_wait(infos: Sequence[ActorInfo], addresses: Sequence[str], *, n_in_step: int = 0) -> str:
    """Returns which actors are waited for, and what to do about it, in words for people.

    Args:
        infos: Every actor that has joined.
        addresses: The addresses at which the learner listens.
        n_in_step: The number of actors that have to be there, because they play in step; 0 if one is enough.
    """
    streaming = [info for info in infos if info.state is ActorState.STREAMING]
    if streaming and len(streaming) >= n_in_step:
        quietest = max(streaming, key=lambda info: info.idle_s)
        connected = "1 connected actor" if len(streaming) == 1 else f"{len(streaming)} connected actors"
        blame = ": their environments are slow or hang" if quietest.idle_s >= QUIET_S else ""
        return f"rollouts from {connected} ({quietest.actor_id} has been quiet for {quietest.idle_s:.0f} s){blame}"
    where = ", ".join(addresses)
    gone = "".join(
        f"; {info.actor_id} is {info.state.name.lower()}" + (f": {info.last_error}" if info.last_error else "")
        for info in [info for info in infos if info not in streaming][:3]
    )
    if streaming:
        return (
            f"{n_in_step - len(streaming)} more actors to join at {where}, because with --deterministic all of "
            f"{n_in_step} play in step: start them with `rollcast actor --learner-address HOST:PORT`{gone}"
        )
    return f"an actor to join at {where}: start one with `rollcast actor --learner-address HOST:PORT`{gone}"
