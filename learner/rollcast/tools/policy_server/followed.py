"""Publishes the policy of a file, and each newer policy that a run writes to it."""

import logging
from pathlib import Path
from typing import Final

from rollcast.actor.loaded_policy import find_saved_policy
from rollcast.actor.policies.make import make_saved_policy
from rollcast.learner.serving.publisher import PolicyPublisher
from rollcast.services.errors import ProtocolMismatchError, RollcastError
from rollcast.services.policies.policies import PolicyName, SavedPolicy, saved_policy_path
from rollcast.services.spaces.spaces import EnvironmentSpaces, check_spaces_match

logger = logging.getLogger(__name__)


class FollowedPolicy:
    """Publishes the policy of a file. One thread calls `look`; any thread may read the attributes.

    Attributes:
        publisher: Serves the policy.
        saved: The saved policy that was published last.
        spaces: The spaces of the policy.
        spec: The architecture of the policy.

    Args:
        run_or_file: A run directory, or one of its `.safetensors` files.
        name: Which policy of the run directory.
        network: The user's own network, which may be imported.
        seed: Seeds the sampling of actions.

    Raises:
        ConfigurationError: There is no such policy, or it cannot be used; see `load_policy`.
    """

    publisher: PolicyPublisher
    spaces: EnvironmentSpaces

    def __init__(self, run_or_file: Path, *, name: PolicyName, network: str, seed: int) -> None:
        self._where: Final = run_or_file
        self._name, self._network, self._seed = name, network, seed
        self._file: Final = saved_policy_path(run_or_file, name) if run_or_file.is_dir() else run_or_file
        self.saved, self.spaces = self._read()
        self._stamp = self._stamp_of_file()
        self.publisher = PolicyPublisher(self.spaces, self.saved.spec, seed=seed)
        self.publisher.publish(self.saved.state, version=self.saved.policy_version)

    def look(self) -> None:
        """Publishes the policy of the file if it has changed; logs a warning if it cannot be used."""
        stamp = self._stamp_of_file()
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            saved, spaces = self._read()
            check_spaces_match(
                self.spaces, spaces, expected_side="the policy that is served", offered_side="the new one"
            )
            if saved.spec != self.saved.spec:
                raise ProtocolMismatchError(
                    f"its network is {saved.spec}; expected {self.saved.spec}, that of the served policy"
                )
            self.publisher.publish(saved.state, version=saved.policy_version)
        except RollcastError as error:
            logger.warning(
                "the policy of %s is not served: %s; the server keeps version %d",
                self._file,
                error,
                self.saved.policy_version,
            )
            return
        self.saved = saved
        logger.info("serving version %d of the policy", saved.policy_version)

    def _read(self) -> tuple[SavedPolicy, EnvironmentSpaces]:
        saved, spaces = find_saved_policy(self._where, name=self._name, network=self._network)
        # Checks the weights: wrong ones would break the publisher.
        make_saved_policy(saved, spaces, seed=self._seed, allowed_network=saved.spec.network)
        return saved, spaces

    def _stamp_of_file(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
