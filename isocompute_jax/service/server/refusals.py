"""What stands between gRPC and the servicer: statuses in place of exceptions, weights that are not copied, and a log.

Every call is taken as a stream of messages, which is the same on the wire: so a message that never comes, or that gRPC
keeps back because it is too large, is a refusal of ours, with a caller and a line in the log. Whoever can reach a port
can be refused as often as he likes, so lines of one kind are few a minute, and those that are left out are counted.
What callers chose (names, paths) is cut, and stands there without control characters.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from prometheus_client import Counter

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import printable
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.convert import read_request
from isocompute_jax.service.proto.terms import Refusal
from isocompute_jax.service.server.engines.base import EngineError

MAX_MESSAGE = 2000
"""Characters of a status's message: gRPC sends no more than some kilobytes of it."""

T = TypeVar("T")
SERVICE = pb.DESCRIPTOR.services_by_name["Sampler"].full_name

LINES, PERIOD_S = 5, 60.0
"""Of one kind so many lines are written in so many seconds, and then how many were not."""
MOST = 400
"""Characters of what a caller may have chosen."""

log = logging.getLogger(__name__)


class Refusals(grpc.aio.ServerInterceptor):
    """Ends a call of the sampler service with the status of the `Refusal` that it raises, or that its message is.

    Args:
      fail: told of an engine's error, which ends more than the call.
      refused: counts by method and status code.
      calls: where refusals are written down.
      wait_s: longest wait for the message of a call that has one.
      max_message_mib: the largest message that gRPC hands on.
    """

    def __init__(
        self,
        fail: Callable[[str], Awaitable[None]],
        refused: Counter,
        calls: CallLog,
        *,
        wait_s: float,
        max_message_mib: int,
    ):
        self._fail = fail
        self._refused = refused
        self._calls = calls
        self._wait_s = wait_s
        self._max_message_mib = max_message_mib

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, wrapped; those of other services (health, reflection) as they are."""
        handler: Any = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.removeprefix("/").rpartition("/")
        if handler is None:
            name = f"there is no method {handler_call_details.method!r}"
            self._calls.refused("A call", grpc.StatusCode.UNIMPLEMENTED, "an address that gRPC does not say", name)
        if handler is None or service != SERVICE:
            return handler
        # The library would copy each chunk of weights twice.
        parse = read_request if method == "UpdateWeights" else handler.request_deserializer
        kind = {(False, False): "unary_unary", (False, True): "unary_stream", (True, False): "stream_unary"}[
            handler.request_streaming, handler.response_streaming
        ]
        make = getattr(grpc, f"stream_{'stream' if handler.response_streaming else 'unary'}_rpc_method_handler")
        behavior = self._refusing(method, getattr(handler, kind), streams=handler.request_streaming)
        return make(behavior, _reader(parse), handler.response_serializer)

    def _refusing(self, method: str, behavior: Callable, *, streams: bool) -> Callable:
        async def call(messages: object, context: grpc.aio.ServicerContext):
            peer = context.peer() or ""  # a call that is over has none
            try:
                return await behavior(messages if streams else await self._message(context), context)
            except Refusal as error:
                refusal = error
            except InputError as error:  # of an engine that cannot draw what is asked
                refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except EngineError as error:
                await self._fail(str(error))
                refusal = Refusal(grpc.StatusCode.UNAVAILABLE, f"the engine has failed: {error}")
            except grpc.aio.InternalError:  # of a write, to a caller that is gone
                raise asyncio.CancelledError from None
            self._refused.labels(method, refusal.code.name).inc()
            self._calls.refused(method, refusal.code, peer, refusal.message)
            try:
                await context.abort(refusal.code, refusal.message[:MAX_MESSAGE], refusal.trailing)
            except grpc.aio.InternalError:  # it does not read: a write is still under way. Its call ends all the same
                raise asyncio.CancelledError from None

        return call

    async def _message(self, context: grpc.aio.ServicerContext) -> Any:
        """The one message of a call.

        Raises:
          Refusal: it does not come, is none, or is too large; then gRPC has ended the call with a status of its own.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                message = await context.read()
        except TimeoutError:
            raise Refusal(grpc.StatusCode.ABORTED, f"no message came for {self._wait_s:g} s") from None
        if isinstance(message, Refusal):
            raise message
        if message is grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
            limit = f"larger than --max_message_mib={self._max_message_mib}"
            raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, f"its message did not come, or was {limit}")
        return message


def _reader(parse: Callable[[bytes], T]) -> Callable[[bytes], T | Refusal]:
    """Parses messages; one that cannot be read becomes its refusal."""

    def read(data: bytes) -> T | Refusal:
        try:
            return parse(data)
        except DecodeError as error:
            return Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"not the message that this method takes: {error}")

    return read


class CallLog:
    """Writes lines with rate limits; used on one event loop."""

    def __init__(self):
        self._lines: collections.Counter[str] = collections.Counter()  # of each kind in its period, left-out ones too
        self._ends: dict[str, asyncio.TimerHandle] = {}

    def refused(self, method: str, code: grpc.StatusCode, peer: str, why: str) -> None:
        """A call was not answered as it asked; its caller at `peer` was told `why`.

        `method` is not what a caller called a method that is unknown: of each name so many lines would be written.
        """
        kind = f"{method} refused with {code.name}"
        self._write(kind, logging.WARNING, f"{kind}, from {quoted(peer)}: {quoted(why)}")

    def happened(self, kind: str, text: str, *, warn: bool = False) -> None:
        """Something that its caller was allowed to do."""
        self._write(kind, logging.WARNING if warn else logging.INFO, f"{kind}: {quoted(text)}")

    def close(self) -> None:
        """Says now what was left out."""
        for kind in list(self._ends):
            self._ends[kind].cancel()
            self._ended(kind)

    def _write(self, kind: str, level: int, line: str) -> None:
        if kind not in self._ends:
            self._ends[kind] = asyncio.get_running_loop().call_later(PERIOD_S, self._ended, kind)
        self._lines[kind] += 1
        if self._lines[kind] <= LINES:
            log.log(level, "%s", line)

    def _ended(self, kind: str) -> None:
        del self._ends[kind]
        left_out = self._lines.pop(kind) - LINES
        if left_out > 0:
            log.warning("%s: %d more within %.0f s, which are not written down one by one", kind, left_out, PERIOD_S)


def quoted(text: str) -> str:
    """Text of one line that a terminal shows as it stands; of a long one the middle is left out."""
    if len(text) > MOST:
        text = f"{text[: MOST // 2]} ... {text[-MOST // 4 :]}"
    return printable(text)
