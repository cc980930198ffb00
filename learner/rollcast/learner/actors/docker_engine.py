"""Talks to the Docker engine of this machine: connects, makes networks, and removes leftovers of dead learners."""

import contextlib
import errno
import logging
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import TYPE_CHECKING

from rollcast.services.errors import ConfigurationError, ContainerEngineError
from rollcast.services.process.installation import require_extra

if TYPE_CHECKING:
    from docker import DockerClient

logger = logging.getLogger(__name__)

# The labels of a learner's name and of its run, by which `stop` and later starts find the containers.
NAME_LABEL = "rollcast.name"
RUN_LABEL = "rollcast.run"

# The time that the engine may take to answer.
_TIMEOUT_S = 30


@contextlib.contextmanager
def engine_asked_to(what: str) -> Iterator[None]:
    """Turns the SDK's errors into one error that names the request to the engine.

    Raises:
        ContainerEngineError: The request failed.
    """
    from docker.errors import APIError, DockerException

    try:
        yield
    # OSError covers the errors of requests, which the SDK lets through
    except (DockerException, OSError) as error:
        why = error.explanation if isinstance(error, APIError) and error.explanation else error
        raise ContainerEngineError(f"the Docker engine failed to {what}: {why}") from error


def connect_to_engine() -> "DockerClient":
    """Connects to the engine that the `docker` command uses.

    Returns:
        A client, which the caller closes.

    Raises:
        ConfigurationError: The SDK is not installed, or this is not Linux.
        ContainerEngineError: No engine answers.
    """
    if sys.platform != "linux":
        raise ConfigurationError(
            f"containers are supported on Linux only, and this is {sys.platform}: on other systems they run in a "
            "virtual machine and cannot reach private addresses of this machine; start them yourself, with "
            "RemoteDistributedActors"
        )
    require_extra("docker", "DockerDistributedActors")
    import docker
    from docker.constants import DEFAULT_DOCKER_API_VERSION
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    client = None
    try:
        # A given API version makes a client without a request; otherwise a failed request would leave it unclosed.
        client = docker.from_env(version=DEFAULT_DOCKER_API_VERSION, timeout=_TIMEOUT_S)
        client.api.version(api_version=False)
        # This client speaks the engine's own version.
        return docker.from_env(timeout=_TIMEOUT_S)
    except (DockerException, OSError) as error:
        where = kwargs_from_env().get("base_url", "its socket")
        raise ContainerEngineError(
            f"no Docker engine answers at {where}: {error}; expected one that `docker info` reaches; start it, or "
            "correct DOCKER_HOST"
        ) from error
    finally:
        if client is not None:
            client.close()


class DockerRun:
    """The containers and the network of one learner between `start` and `stop`. Used by one thread.

    A bound abstract socket marks a living learner: the kernel frees the socket at any end of the process. The next
    learner with the same name removes containers and networks of dead learners. Labels identify them.

    Args:
        client: The engine.
        name: The prefix of the containers' names.
        labels: Additional labels for containers and network.
    """

    def __init__(self, client: "DockerClient", name: str, labels: Mapping[str, str]) -> None:
        self.client = client
        self.run_id = secrets.token_hex(4)
        self.name = f"{name}-{self.run_id}"
        self.labels = {**labels, NAME_LABEL: name, RUN_LABEL: self.run_id}
        self._life_sign = _take_life_sign(self.run_id)
        assert self._life_sign is not None, "run ids are drawn from 32 bits"

    def make_network(self) -> str:
        """Makes a bridge network for this run, and returns its name.

        Raises:
            ContainerEngineError: The network cannot be made.
        """
        with engine_asked_to(f"make the network {self.name}"):
            self.client.networks.create(self.name, driver="bridge", labels=self.labels)
        return self.name

    def gateway(self, network: str) -> str:
        """Returns the address of this machine in a bridge network.

        Raises:
            ConfigurationError: The network does not exist, or its gateway is not on this machine.
            ContainerEngineError: The engine does not answer.
        """
        from docker.errors import NotFound

        with engine_asked_to(f"describe the network {network!r}"):
            try:
                attributes = self.client.networks.get(network).attrs
            except NotFound:
                attributes = None
        if attributes is None:
            raise ConfigurationError(
                f"network is {network!r}, which the engine does not have; make it with `docker network create "
                f"{network}`, or leave `network` out, for a network that is made and removed with the actors"
            )
        gateways = [_gateway_of(block) for block in attributes["IPAM"].get("Config") or ()]
        ours = next((gateway for gateway in gateways if _is_ours(gateway)), None)
        if attributes["Driver"] != "bridge" or ours is None:
            raise ConfigurationError(
                f"network is {network!r}, a network of the kind {attributes['Driver']} whose gateway "
                f"{gateways[0] if gateways else '(none)'} is not an address of this machine, so that its containers "
                "cannot reach the learner; expected a bridge network of an engine on this machine, or 'host'; for an "
                "engine on another machine start the actors there, with RemoteDistributedActors"
            )
        return ours

    def check_image(self, image: str) -> None:
        """Checks that the engine has the image. Does not pull it.

        Raises:
            ConfigurationError: The engine does not have the image.
            ContainerEngineError: The engine does not answer.
        """
        from docker.errors import ImageNotFound

        with engine_asked_to(f"look for the image {image!r}"):
            try:
                self.client.images.get(image)
            except ImageNotFound as error:
                raise ConfigurationError(
                    f"image is {image!r}, which the engine does not have; build it, for example with `docker build "
                    f"--network=host -f actor/Dockerfile -t {image} .`, or get it with `docker pull {image}`"
                ) from error

    def states(self) -> dict[str, str]:
        """Returns the state (`running`, `exited`, ...) of each of this run's containers, by id.

        Raises:
            ContainerEngineError: The engine does not answer.
        """
        with engine_asked_to("list the actors' containers"):
            found = self.client.api.containers(all=True, filters={"label": f"{RUN_LABEL}={self.run_id}"})
        return {container["Id"]: container["State"] for container in found}

    def remove_leftovers(self) -> None:
        """Removes the containers and networks of dead learners with the same name.

        Raises:
            ContainerEngineError: The request failed.
        """
        mine = self.labels[NAME_LABEL]
        with engine_asked_to(f"remove leftovers of earlier learners named {mine!r}"):
            runs = {
                (found.get("Labels") or {}).get(RUN_LABEL, "")
                for found in (
                    *self.client.api.containers(all=True, filters={"label": f"{NAME_LABEL}={mine}"}),
                    *self.client.api.networks(filters={"label": f"{NAME_LABEL}={mine}"}),
                )
            }
            for run_id in sorted(runs - {self.run_id, ""}):
                if not _lives(run_id):
                    logger.warning("removing the containers of a learner that is gone: %s-%s", mine, run_id)
                    self._remove_all(run_id)

    def remove(self) -> None:
        """Removes this run's containers and its network; kills running containers.

        Raises:
            ContainerEngineError: The request failed.
        """
        with engine_asked_to(f"remove the containers and the network labelled {RUN_LABEL}={self.run_id}"):
            self._remove_all(self.run_id)

    def close(self) -> None:
        """Frees the socket that marks a living learner, and closes the client. Idempotent."""
        if self._life_sign is not None:
            self._life_sign.close()
        self.client.close()

    def _remove_all(self, run_id: str) -> None:
        by_label = {"label": f"{RUN_LABEL}={run_id}"}
        for found in self.client.api.containers(all=True, filters=by_label):
            remove_container(self.client, found["Id"])
        for network in self.client.api.networks(filters=by_label):
            self.client.api.remove_network(network["Id"])


def remove_container(client: "DockerClient", container_id: str) -> None:
    """Removes a container, even a running one, and its anonymous volumes. Does nothing if it does not exist."""
    from docker.errors import APIError

    try:
        client.api.remove_container(container_id, force=True, v=True)
    except APIError as error:
        # 404: it is gone; 409: it is being removed now
        if error.status_code not in (404, 409):
            raise


def _take_life_sign(run_id: str) -> socket.socket | None:
    """Binds the abstract socket of a run; returns None if its living learner holds the socket."""
    sign = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sign.bind(f"\0rollcast-docker-{run_id}")
    except OSError as error:
        sign.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return sign


def _lives(run_id: str) -> bool:
    sign = _take_life_sign(run_id)
    if sign is not None:
        sign.close()
    return sign is None


def _gateway_of(block: Mapping[str, str]) -> str:
    """Returns the gateway of a network's block of addresses; the block's first address if the engine names none.

    An engine names no gateway for `bridge` until it is started a second time.
    """
    return block.get("Gateway") or str(ip_network(block["Subnet"], strict=False).network_address + 1)


def _is_ours(host: str) -> bool:
    """Returns whether an address belongs to this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
