"""What stands between gRPC and the servicer: statuses in place of exceptions, and weights that are not copied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from prometheus_client import Counter

from isocompute_jax.records.errors import InputError
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.chunks import read_request
from isocompute_jax.service.proto.refusal import Refusal
from isocompute_jax.service.server.engines.base import EngineError

T = TypeVar("T")
SERVICE = pb.DESCRIPTOR.services_by_name["Sampler"].full_name


class Refusals(grpc.aio.ServerInterceptor):
    """Ends a call of the sampler service with the status of the `Refusal` that it raises, or that its message is.

    Args:
      fail: told of an engine's error, which ends more than the call.
      refused: counts by method and status code.
    """

    def __init__(self, fail: Callable[[str], Awaitable[None]], refused: Counter):
        self._fail = fail
        self._refused = refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, wrapped; those of other services (health, reflection) as they are."""
        handler: Any = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.removeprefix("/").rpartition("/")
        if handler is None or service != SERVICE:
            return handler
        # The library would copy each chunk of weights twice.
        parse = read_request if method == "UpdateWeights" else handler.request_deserializer
        kind = {(False, False): "unary_unary", (False, True): "unary_stream", (True, False): "stream_unary"}[
            handler.request_streaming, handler.response_streaming
        ]
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(self._refusing(method, getattr(handler, kind)), _reader(parse), handler.response_serializer)

    def _refusing(self, method: str, behavior: Callable) -> Callable:
        async def call(message: object, context: grpc.aio.ServicerContext):
            try:
                if isinstance(message, Refusal):
                    raise message
                return await behavior(message, context)
            except Refusal as error:
                refusal = error
            except InputError as error:  # of an engine that cannot draw what is asked
                refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except EngineError as error:
                await self._fail(str(error))
                refusal = Refusal(grpc.StatusCode.UNAVAILABLE, f"the engine has failed: {error}")
            self._refused.labels(method, refusal.code.name).inc()
            await context.abort(refusal.code, refusal.message, refusal.trailing)

        return call


def _reader(parse: Callable[[bytes], T]) -> Callable[[bytes], T | Refusal]:
    """Parses messages; one that cannot be read becomes its refusal."""

    def read(data: bytes) -> T | Refusal:
        try:
            return parse(data)
        except DecodeError as error:
            return Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"not the message that this method takes: {error}")

    return read
