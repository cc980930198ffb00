"""Acts with parameters from central inference, or with the actor's own policy if no answer arrives."""

import logging
from typing import Self

from rollcast.actor.inference.link import InferenceLink
from rollcast.actor.policies.base import Policy, RecurrentState
from rollcast.actor.policies.distributions import Parameters
from rollcast.services.client.inference import InferenceClient
from rollcast.services.environments.latencies import Latencies
from rollcast.services.inference.inference import InferenceNetwork, Question, weights_digest
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.security.security import ClientSecurity
from rollcast.services.spaces.spaces import Observation

logger = logging.getLogger(__name__)


class CentralInference:
    """The server that computes an actor's policies, in one run after another. For the acting thread only.

    Args:
        address: The server.
        timeout_s: Seconds that an answer may take.
        security: Certificates and token.

    Attributes:
        latencies: The times between recent questions and their answers.
        n_alone: The number of forward passes that the actor has computed itself.

    Raises:
        ConfigurationError: The address is malformed, or a file of `security` cannot be used.
    """

    def __init__(self, address: str, *, timeout_s: float, security: ClientSecurity) -> None:
        self.latencies = Latencies()
        self.n_alone = 0
        self._client = InferenceClient(address, security=security)
        self._timeout_s = timeout_s
        self._link: InferenceLink | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def over(self, own: Policy, spec: PolicySpec, *, seed: int, slot: int) -> Policy:
        """Returns a policy whose parameters the server computes. Ends the stream of the previous run.

        Args:
            own: The actor's own policy.
            spec: The policy's architecture.
            seed: See `make_policy`.
            slot: See `make_policy`.
        """
        self._unlink()
        if own.event_sources():
            logger.warning(
                "central inference is not used: the policy's network fires events, so this actor computes the policy"
            )
            return own
        self._link = InferenceLink(
            self._client, InferenceNetwork(own.spaces, spec), timeout_s=self._timeout_s, latencies=self.latencies
        )
        return _CentralPolicy(own, spec, self, self._link, seed=seed, slot=slot)

    def close(self) -> None:
        """Ends the stream. Idempotent."""
        self._unlink()
        self._client.close()

    def _unlink(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class _CentralPolicy(Policy):
    """A policy that gets its parameters from the server. It draws actions and keeps states itself."""

    def __init__(
        self, own: Policy, spec: PolicySpec, central: CentralInference, link: InferenceLink, *, seed: int, slot: int
    ) -> None:
        super().__init__(
            own.spaces, seed=seed, head=spec.head, slot=slot, state_size=spec.state_size, frame_stack=spec.frame_stack
        )
        self._own = own
        self._central = central
        self._link = link
        self._weights_digest = b""

    def load(self, version: int, state: PolicyState) -> None:
        """Loads weights, also into the actor's own policy; see `Policy.load`."""
        self._own.load(version, state)
        self._weights_digest = weights_digest(state)
        super().load(version, state)

    def parameters_of(self, observation: Observation, substep_key: str, state: RecurrentState | None) -> Parameters:
        """Asks the server first; see `Policy.parameters_of`."""
        question = Question(self.version, self._weights_digest, substep_key, observation, state)
        inferred = self._link.ask(question, self._distributions[substep_key].n_parameters)
        if inferred is None or inferred.parameters is None:
            self._central.n_alone += 1
            return self._own.parameters_of(observation, substep_key, state)
        if state is not None:
            state[...] = inferred.state
        return inferred.parameters

    def _load(self, state: PolicyState) -> None:
        """Does nothing: the actor's own policy has checked and copied the arrays."""
