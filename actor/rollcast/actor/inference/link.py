"""Keeps a stream to central inference. The actor never waits for a connection, and waits only briefly for an answer."""

import logging
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.actor.connection.reconnects import GOOD_CONNECTION_S
from rollcast.services.client.inference import InferenceClient
from rollcast.services.environments.latencies import Latencies
from rollcast.services.errors import DamagedMessageError, InvalidInputError, LearnerUnreachableError, RollcastError
from rollcast.services.inference.codec import QuestionCodec, network_to_bytes
from rollcast.services.inference.inference import InferenceNetwork, Inferred, Question
from rollcast.services.wire.error_status import errors_of_calls
from rollcast.services.wire.seal import StreamSeals, seal

logger = logging.getLogger(__name__)

# Bounds of the pauses after an answer without parameters, in seconds. The server's policy arrives within milliseconds
# of the actor's, or much later.
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 1.0


class _Stream:
    """A stream that the server has accepted.

    Attributes:
        answers: The received answers; None: the stream has ended.
        seals: Opens the answers: the first in the thread that reads, then all in the acting thread.
        reason: The reason for which this side has ended the stream; empty: not ended.
    """

    def __init__(self, network: bytes) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._requests.put(network)
        self.answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.seals = StreamSeals()
        self.reason = ""
        self.call: Any = None

    def requests(self) -> Iterator[bytes]:
        """Yields the messages to send; gRPC's own thread iterates over it."""
        return iter(self._requests.get, None)

    def send(self, message: bytes) -> None:
        """Sends a message."""
        self._requests.put(message)

    def end(self, reason: str = "") -> None:
        """Ends both directions."""
        self.reason = self.reason or reason
        self._requests.put(None)
        self.answers.put(None)
        if self.call is not None:
            self.call.cancel()


class InferenceLink:
    """A stream to central inference, reopened after every loss.

    The acting thread asks. The thread `rollcast-inference-link` connects and reads the answers.

    Args:
        client: The client; the caller closes it, after the link.
        network: The actor's network.
        timeout_s: Seconds that an answer may take. After that, the actor computes the policy itself.
        latencies: Notes the time of each answer.
    """

    def __init__(
        self, client: InferenceClient, network: InferenceNetwork, *, timeout_s: float, latencies: Latencies
    ) -> None:
        self._client = client
        self._network = seal(network_to_bytes(network))
        self._codec = QuestionCodec(network)
        self._timeout_s = timeout_s
        self._latencies = latencies
        # Of the acting thread.
        self._pause_s = 0.0
        self._paused_until = 0.0
        self._lock = threading.Lock()  # guards all below; `closed` is set with it
        self._closed = threading.Event()
        self._opened: _Stream | None = None
        # The same, once the server has accepted it.
        self._stream: _Stream | None = None
        self._thread = threading.Thread(target=self._keep, name="rollcast-inference-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the stream and the thread."""
        with self._lock:
            self._closed.set()
            if self._opened is not None:
                self._opened.end()
        self._thread.join()

    def ask(self, question: Question, n_parameters: int) -> Inferred | None:
        """Returns the parameters for a question; None: the actor has to compute them.

        Args:
            question: The question.
            n_parameters: P of the question's substep.
        """
        with self._lock:
            stream = self._stream
        began = time.monotonic()
        if stream is None or began < self._paused_until:
            return None
        stream.send(seal(self._codec.to_bytes(question)))
        try:
            message = stream.answers.get(timeout=self._timeout_s)
        except queue.Empty:
            self._end(stream, f"no answer arrived within {self._timeout_s:g} s")
            return None
        if message is None:
            return None
        try:
            inferred = self._codec.answer_from_bytes(stream.seals.open(message), question.n, n_parameters)
        except (InvalidInputError, DamagedMessageError) as error:
            self._end(stream, str(error))
            return None
        if inferred.parameters is None or inferred.policy_version < question.policy_version:
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._paused_until = time.monotonic() + self._pause_s
            return None
        self._pause_s = 0.0
        self._latencies.note(time.monotonic() - began)
        return inferred

    def _end(self, stream: _Stream, reason: str) -> None:
        with self._lock:
            if self._stream is stream:  # else another has been opened since
                self._stream = None
        stream.end(reason)

    def _keep(self) -> None:
        delays, is_known_to_be_away = backoff_delays(), False
        while not self._closed.is_set():
            stream, reason, began = _Stream(self._network), "it has ended the stream", time.monotonic()
            try:
                for n_answers in self._read(stream):
                    if n_answers == 1:
                        logger.info("central inference at %s answers", self._client.address)
                        is_known_to_be_away = False
            except LearnerUnreachableError:
                reason = "it cannot be reached"
            except RollcastError as error:
                reason = str(error)
            with self._lock:
                self._stream = None
            stream.end()
            # Not after one answer: the next may be late or wrong, and each new stream costs the server a network.
            if time.monotonic() - began >= GOOD_CONNECTION_S:
                delays = backoff_delays()
            if not (is_known_to_be_away or self._closed.is_set()):
                is_known_to_be_away = True
                logger.warning(
                    "central inference at %s is away: %s; this actor computes the policy itself until it returns",
                    self._client.address,
                    stream.reason or reason,
                )
            self._closed.wait(next(delays))

    def _read(self, stream: _Stream) -> Iterator[int]:
        """Opens a stream, and delivers its answers until it ends. Yields their number before each one."""
        with errors_of_calls(self._client.address):
            with self._lock:
                if self._closed.is_set():
                    return
                stream.call = self._client.infer(stream.requests())
                self._opened = stream
            for n_answers, message in enumerate(stream.call):
                if n_answers:
                    yield n_answers
                    stream.answers.put(message)
                else:
                    stream.seals.open(message)
                    with self._lock:
                        self._stream = stream
