"""A learner in a container, watched from outside through the gRPC API."""

import contextlib

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError
from rollcast.services.security.security import PLAIN_CLIENT
from rollcast.services.status.status import ActorState, Phase
from tests.e2e.conftest import wait_until
from tests.processes import DEADLINE_S, status_of


class Watch:
    """The learner of a compose project, seen through its API; while it is away nothing is true of it."""

    def __init__(self, address, security=PLAIN_CLIENT):
        self.client = LearnerClient(address, timeout_s=30.0, security=security)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.client.close()

    def actors(self, state=ActorState.STREAMING):
        """Returns the actors in a state; none while the learner is away."""
        with contextlib.suppress(LearnerUnreachableError):
            return [actor for actor in self.client.actors() if actor.state is state]
        return []

    def incarnations(self, state=ActorState.STREAMING):
        """Actor -> incarnation, of those in a state."""
        return {actor.actor_id: actor.incarnation for actor in self.actors(state)}

    def is_training(self, n_actors):
        """Returns True if updates are made with the rollouts of so many actors."""
        with contextlib.suppress(LearnerUnreachableError):
            status = self.client.status()
            return status.phase is Phase.TRAINING and status.updates > 0 and len(self.incarnations()) == n_actors
        return False

    def wait_for_training(self, n_actors, timeout_s=DEADLINE_S):
        wait_until(lambda: self.is_training(n_actors), f"training with {n_actors} actors", timeout_s)

    def wait_for_progress(self):
        """Waits until more has been learnt, and cast, than up to now."""
        before = self.client.status()

        def has_gone_on():
            now = status_of(self.client)
            counts = ((status.env_steps, status.updates, status.policy_version) for status in (before, now))
            return all(earlier < later for earlier, later in zip(*counts, strict=True))

        wait_until(has_gone_on, "further steps, updates and policies")

    def wait_for_the_end(self, timeout_s=3 * DEADLINE_S):
        """Waits until training has ended and the learner serves its policy."""
        wait_until(lambda: self.phase() is Phase.FINISHED, "the end of training", timeout_s)

    def phase(self):
        with contextlib.suppress(LearnerUnreachableError):
            return self.client.status().phase
        return None
