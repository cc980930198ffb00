"""Serves rollcast.v1.InferenceService in an event loop, with one coroutine for each stream."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from rollcast.services.environments.latencies import Latencies
from rollcast.services.environments.play import LoopCalls
from rollcast.services.errors import RollcastError
from rollcast.services.inference.codec import QuestionCodec, answer_to_bytes, network_from_bytes
from rollcast.services.inference.inference import InferenceSource, Inferred
from rollcast.services.wire.seal import StreamSeals, seal
from rollcast.v1 import inference_pb2

INFERENCE_SERVICE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name


class InferenceServicer:
    """Reads actors' questions, one at a time for each stream, and answers them. Only the event loop uses it.

    Args:
        source: Computes the answers.
        calls: Runs functions in the loop.
        latencies: Records the time from each question to its answer, measured at gRPC.
    """

    def __init__(self, source: InferenceSource, calls: LoopCalls, latencies: Latencies) -> None:
        self._source = source
        self._calls = calls
        self._latencies = latencies

    def handlers(self) -> grpc.GenericRpcHandler:  # type: ignore[type-arg]  # generic in the stubs only
        """Returns the handlers for a server of `grpc.aio`."""
        handler: Any = grpc.stream_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(INFERENCE_SERVICE, {"Infer": handler(self.infer)})

    async def infer(self, requests: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401  # generic in the stubs only
        """Serves rollcast.v1.InferenceService.Infer with serialised messages."""
        seals = StreamSeals()
        network, digest = network_from_bytes(seals.open(await anext(requests)))
        codec, loop = QuestionCodec(network), asyncio.get_running_loop()
        with self._source.stream(network, digest) as ask:
            question = None
            while True:
                began, answered = time.monotonic(), loop.create_future()

                def take(
                    answer: Inferred | RollcastError | None, answered: asyncio.Future[Inferred | None] = answered
                ) -> None:
                    self._calls(lambda: _settle(answered, answer))

                ask(question, take)
                answer = answer_to_bytes(await answered)
                if question is not None:
                    self._latencies.note(time.monotonic() - began)
                await context.write(seal(answer) if seals.is_sealed else answer)
                if (message := await anext(requests, None)) is None:
                    return
                question = codec.from_bytes(seals.open(message))


def _settle(answered: "asyncio.Future[Inferred | None]", answer: Inferred | RollcastError | None) -> None:
    if answered.done():  # the stream has ended
        return
    if isinstance(answer, RollcastError):
        answered.set_exception(answer)
    else:
        answered.set_result(answer)
