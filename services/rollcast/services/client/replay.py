"""The typed client of a remote replay buffer."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from rollcast.services.client.calls import Client
from rollcast.services.limits.limits import CALL_TIMEOUT_S
from rollcast.services.replay.batch_assembler import BatchAssembler
from rollcast.services.replay.codec import replay_info_from_proto
from rollcast.services.replay.replay import ReplayBatch, ReplayInfo
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.wire.tensors import fill_tensor
from rollcast.v1 import replay_pb2, replay_pb2_grpc


class ReplayClient(Client):
    """A client of a replay buffer. Safe from many threads. It raises only errors of `rollcast.services.errors`.

    Every method raises the server's own errors, and `LearnerUnreachableError` if no server answers by the deadline.

    Example:
        >>> with ReplayClient("127.0.0.1:50051") as replay:
        ...     for batch in replay.samples(256):
        ...         replay.update_priorities(batch.keys, learn(batch))

    Args:
        address: "host:port", "unix:/path" or "file:/path".
        timeout_s: Deadline of every unary call, in seconds.
        substep_key: The substep of the buffer; empty: the only substep.
        security: Certificates and token.

    Raises:
        ConfigurationError: The address is malformed, a file of `security` cannot be used, or `timeout_s` is not above 0
            and at most 2,000,000.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        substep_key: str = "",
        security: ClientSecurity = PLAIN_CLIENT,
    ) -> None:
        super().__init__(address, timeout_s, security)
        self._substep_key = substep_key
        stub = replay_pb2_grpc.ReplayServiceStub(self._channel)  # type: ignore[no-untyped-call]
        # Without a deserialiser, so that no copy of the tensors' bytes is made.
        stub.Sample = self._channel.unary_stream(
            "/rollcast.v1.ReplayService/Sample",
            request_serializer=replay_pb2.SampleRequest.SerializeToString,
            response_deserializer=None,
        )
        self._stubs = {"rollcast.v1.ReplayService": stub}

    def info(self) -> ReplayInfo:
        """Returns the state of the buffer.

        Raises:
            ProtocolMismatchError: The server has no replay buffer.
            InvalidInputError: The server has several buffers, and none of them has `substep_key`. Every method may
                raise this error.
            LearnerUnreachableError: No server answers.
        """
        response = self._call(
            "/rollcast.v1.ReplayService/GetReplayInfo", replay_pb2.GetReplayInfoRequest(substep_key=self._substep_key)
        )
        return replay_info_from_proto(response.info)

    def samples(self, batch_size: int, n_batches: int = 0, *, timeout_s: float = 60.0) -> Iterator[ReplayBatch]:
        """Draws batches, and prefetches later batches. Closing the iterator ends the stream.

        Args:
            batch_size: B, the entries in a batch.
            n_batches: The number of batches; 0: unlimited.
            timeout_s: Seconds that the server may wait for each batch, 0 to 3600.

        Yields:
            The batches; their arrays are read-only and stay valid.

        Raises:
            InvalidInputError: An argument is outside its range, or the buffer has fewer than B entries.
            LimitExceededError: A batch or an entry exceeds its limit, or too many streams are open.
            NotReadyError: The buffer or its limiter released no batch in time, or the server is stopping.
            LearnerUnreachableError: No server answers.
        """
        request = replay_pb2.SampleRequest(
            batch_size=batch_size,
            n_batches=n_batches,
            timeout_s=timeout_s,
            may_defer=True,
            substep_key=self._substep_key,
        )
        assembler = BatchAssembler(batch_size)
        for response in self._responses("/rollcast.v1.ReplayService/Sample", request):
            if (batch := assembler.add(response)) is not None:
                yield batch

    def update_priorities(self, keys: ArrayLike, priorities: ArrayLike) -> int:
        """Sets the priorities of entries. The last priority of a repeated key counts.

        Args:
            keys: int64 `[N]`, from `ReplayBatch.keys`.
            priorities: `[N]`, in [0, 1e100].

        Returns:
            The number of ignored keys: the buffer no longer has their entries.

        Raises:
            InvalidInputError: The numbers of keys and priorities differ, or a priority is invalid. The server then sets
                no priority.
            LearnerUnreachableError: No server answers.
        """
        request = replay_pb2.UpdatePrioritiesRequest(substep_key=self._substep_key)
        fill_tensor(request.keys, np.asarray(keys, np.int64), what="keys")
        fill_tensor(request.priorities, np.asarray(priorities, np.float64), what="priorities")
        return int(self._call("/rollcast.v1.ReplayService/UpdatePriorities", request).ignored)

    def reset(self) -> None:
        """Removes every entry.

        Raises:
            LearnerUnreachableError: No server answers.
        """
        self._call("/rollcast.v1.ReplayService/Reset", replay_pb2.ResetRequest(substep_key=self._substep_key))
