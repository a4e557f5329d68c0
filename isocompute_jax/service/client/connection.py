"""One sampler server, as a learner calls it and as a cluster's probes ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import xxhash
from grpc_health.v1 import health_pb2, health_pb2_grpc

from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.tensors import DTYPE_BYTES, Box
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.proto import convert, sampler_pb2_grpc
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.weights.changes import changes
from isocompute_jax.service.weights.files import BITS, Parcel

UPDATE_WEIGHTS = f"/{pb.DESCRIPTOR.services_by_name['Sampler'].full_name}/UpdateWeights"

CHUNK_BYTES = 1 << 20
"""Of streamed weights: smaller chunks cost more calls, larger ones no longer fit the processor's cache."""

OPTIONS: list[tuple[str, int]] = [
    # What servers send is limited by what they were asked for.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A connection of its own for each channel, so that parallel streams do not share one.
    ("grpc.use_local_subchannel_pool", 1),
    # A server that was started again is found at once, not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A host that went away without a word closes nothing.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Proxies of the environment are for web pages.
    ("grpc.enable_http_proxy", 0),
]

CLOSED = "Socket closed"
"""All that is heard of a server that is gone, and of one that wants another kind of connection."""


class Endpoint:
    """Calls to one server at `target`; used on one event loop. Errors are `grpc.aio.AioRpcError`, as gRPC raises them.

    Raises:
      InputError: a file of `service`, of certificates or the token, cannot be read.
    """

    def __init__(self, target: str, service: ServiceConfig):
        self.target = target
        self.cannot_read = False  # it was sent weights as a file, and could not read it
        self.keeps: int | None = None  # the version of which it can be told the changes
        self._credentials = credentials(service)
        token = service.token()
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = self._connect()
        self._stub: Any = sampler_pb2_grpc.SamplerStub(self._channel)
        self._push_channels: list[grpc.aio.Channel] = []

    async def status(self, *, timeout: float, session: str = "", release: bool = False) -> pb.StatusReply:
        """What the server serves and how busy it is; the timeout is in seconds.

        `session` is who asks: while the one whose weights serve keeps asking, others keep away; `release` ends that.
        """
        return await self._stub.Status(pb.StatusRequest(session=session, release=release), timeout=timeout)

    def sample(self, request: pb.SampleRequest) -> grpc.aio.UnaryStreamCall:
        """Samples a group: iterate over the call for `SampleReply`s, as completions finish; `cancel()` ends it."""
        return self._stub.Sample(request)

    async def push(self, calls: Sequence[Iterator[bytes]], *, sent: Callable[[], None]) -> pb.UpdateWeightsReply:
        """Sends weights, and returns when the server samples with them.

        `calls` are those of `update_calls`, each with a connection of its own; `sent` is called after every message.
        """
        while len(self._push_channels) < len(calls):
            self._push_channels.append(self._connect())
        channels = self._push_channels[: len(calls)]
        running = [
            self._update(channel, _reporting(messages, sent)) for channel, messages in zip(channels, calls, strict=True)
        ]
        try:
            return (await asyncio.gather(*running))[0]
        finally:
            for call in running:
                call.cancel()

    def push_messages(self, messages: AsyncIterator[bytes]) -> grpc.aio.StreamUnaryCall:
        """One call that tells the server of weights which come to it by another way; see `push`."""
        return self._update(self._channel, messages)

    def _update(
        self, channel: grpc.aio.Channel, messages: Iterator[bytes] | AsyncIterator[bytes]
    ) -> grpc.aio.StreamUnaryCall:
        # The server answers, or nothing would be pushed; but this connection may still think that it is down.
        method = channel.stream_unary(UPDATE_WEIGHTS, None, pb.UpdateWeightsReply.FromString)
        return method(messages, metadata=self._metadata, wait_for_ready=True)

    async def open_transfer(self, request: pb.OpenTransferRequest, *, timeout: float) -> None:
        """Makes the server's ranks members of a communicator; returns when all of its members are there."""
        await self._stub.OpenTransfer(request, timeout=timeout, metadata=self._metadata)

    async def cancel(self, group_ids: Sequence[str], *, timeout: float) -> None:
        """Cancels those of the groups that are there."""
        await self._stub.Cancel(pb.CancelRequest(group_ids=group_ids), timeout=timeout)

    async def close(self) -> None:
        """Ends every call and closes the connections."""
        for channel in (self._channel, *self._push_channels):
            await channel.close()

    def _connect(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.target, OPTIONS)
        return grpc.aio.secure_channel(self.target, self._credentials, OPTIONS)


def update_calls(
    parcel: Parcel,
    *,
    session: str,
    in_flight: pb.InFlight,
    shared: bool,
    streams: int,
    process_index: int = 0,
    process_count: int = 1,
    keep: bool = False,
    base: int | None = None,
) -> list[Iterator[bytes]]:
    """The messages of this host's `UpdateWeights` calls, serialised, each from its header to its end.

    The parcel, this host's share, goes as a manifest of its file where that is `shared`, else in chunks, over so many
    `streams`. Senders are numbered over all learner hosts: host h of H with s calls each has the numbers h * s ..
    h * s + s - 1 of H * s. All hosts make the same number of calls, whichever way each of them sends: one that sends a
    manifest while others stream fills its other calls with nothing.

    With `keep` the server is to keep what it gets for the changes of the next parcel. Where `base`, what it keeps, is
    the version of the parcel before this one, chunks of which little has changed say that alone.
    """
    before = parcel.before if parcel.before is not None and parcel.before.version == base and not shared else None
    index = {tensor.name: i for i, tensor in enumerate(parcel.tensors)}
    count = 1 if shared and process_count == 1 else streams

    def messages(call: int) -> Iterator[bytes]:
        header = pb.WeightsHeader(
            session=session,
            version=parcel.version,
            tensors=convert.tensors_to_messages(parcel.tensors),
            in_flight=in_flight,
            sender=process_index * count + call,
            senders=process_count * count,
            keep=keep and not shared,
            base=None if before is None else before.version,
        )
        yield pb.UpdateWeightsRequest(header=header).SerializeToString()
        sent = 0
        if shared and call == 0:
            sent = sum(box.nbytes for box in parcel.boxes)
            manifest = pb.Manifest(
                path=parcel.path,
                size=len(parcel.data),
                checksum=parcel.checksum,
                boxes=[convert.box_to_message(box, index) for box in parcel.boxes],
                starts=parcel.starts,
            )
            yield pb.UpdateWeightsRequest(manifest=manifest).SerializeToString()
        elif not shared:
            chunks = _chunks(parcel)  # each call sends consecutive ones, so that it reads the file in order
            for box, start in chunks[len(chunks) * call // count : len(chunks) * (call + 1) // count]:
                data, gaps = parcel.data[start : start + box.nbytes], None
                checksum = xxhash.xxh3_64_intdigest(data)
                if before is not None:
                    data, gaps = _changes(before.data[start : start + box.nbytes], data, box)
                sent += len(data) + len(gaps or b"")
                yield convert.write_chunk(convert.box_to_message(box, index), data, checksum, gaps)
        yield pb.UpdateWeightsRequest(end=pb.WeightsEnd(bytes=sent)).SerializeToString()

    return [messages(call) for call in range(count)]


def _changes(old: memoryview, new: memoryview, box: Box) -> tuple[memoryview, memoryview | None]:
    """The data of a chunk and its gaps: what changed of it, or all, without gaps."""
    bits = BITS[DTYPE_BYTES[box.dtype]]
    found = changes(np.frombuffer(old, bits), np.frombuffer(new, bits))
    return (new, None) if found is None else (found.numbers.view(np.uint8).data, found.gaps.data)


def _chunks(parcel: Parcel) -> list[tuple[Box, int]]:
    """The boxes of a parcel, cut to at most `CHUNK_BYTES` each, and the byte of its file at which each begins."""
    return [
        (chunk, start + inside)
        for box, start in zip(parcel.boxes, parcel.starts, strict=True)
        for chunk, inside in box.cut(CHUNK_BYTES)
    ]


def reason_of(error: BaseException) -> str:
    """What a server said when it refused a call, or what else went wrong with one."""
    return error.details() or str(error.code()) if isinstance(error, grpc.aio.AioRpcError) else str(error)


def tls_faults() -> tuple[tuple[str, str], ...]:
    """What TLS says -> what it means, and what to do; the first that is found. Waiting mends the first one alone."""
    service = CONFIG.service
    return (
        ("certificate is not yet valid", "its certificate is not valid yet: look at the clocks of both hosts"),
        ("certificate has expired", "its certificate has expired: give the server a new one (--tls_cert, --tls_key)"),
        (
            "Hostname Verification Check failed",
            f"its certificate is for another name than the one in {service.endpoints}: give the server one for that "
            "name, or correct the name",
        ),
        (
            "CERTIFICATE_VERIFY_FAILED",
            f"its certificate is not signed by the authority of {service.ca_file}: give that of its authority",
        ),
        ("WRONG_VERSION_NUMBER", f"it does not speak TLS: start it with --tls_cert, or leave {service.ca_file} out"),
    )


def why(error: grpc.aio.AioRpcError, service: ServiceConfig) -> str:
    """Why a server cannot be reached, in words that say what to do where TLS is, or may be, at fault."""
    details = error.details() or str(error.code())
    if CLOSED in details:
        wants = f"it may want TLS: {CONFIG.service.ca_file}"
        if service.ca_file:
            wants = f"it may want a certificate of the learner: {CONFIG.service.cert_file} and key_file"
        if service.cert_file:
            cert = CONFIG.service.cert_file
            wants = f"it may refuse the certificate of {cert}, which may have expired; its log says so"
        return f"{details} (if it is there, {wants})"
    return next((meaning for words, meaning in tls_faults() if words in details), details)


def untrusted(reason: str) -> bool:
    """Whether a server is not used for a reason (see `why`) that waiting does not mend: no TLS, or whose it is."""
    return any(meaning in reason for _, meaning in tls_faults()[1:])


def credentials(service: ServiceConfig) -> grpc.ChannelCredentials | None:
    """TLS, mutual with a certificate of our own; None without `ca_file`."""
    if not service.ca_file:
        return None
    key, certificate = service.read("key_file") or None, service.read("cert_file") or None
    return grpc.ssl_channel_credentials(service.read("ca_file"), key, certificate)


def _reporting(messages: Iterator[bytes], sent: Callable[[], None]) -> Iterator[bytes]:
    """The messages; says of each when the next one is asked for."""
    for message in messages:
        yield message
        sent()


def ask(address: str, *, ca_file: str | None, tls_name: str | None, timeout_s: float) -> int:
    """The server's answer, a `HealthCheckResponse.ServingStatus`.

    Raises:
      InputError: the file of certificates cannot be read.
      RunError: no answer.
    """
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if tls_name:
        options.append(("grpc.ssl_target_name_override", tls_name))
    try:
        with _channel(address, ca_file, options) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            return stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s).status
    except OSError as error:
        raise InputError(f"--ca_file={ca_file}: {error.strerror}") from error
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        raise RunError(f"{address}: {error.details()}") from error


def _channel(address: str, ca_file: str | None, options: list[tuple[str, str | int]]) -> grpc.Channel:
    if not ca_file:
        return grpc.insecure_channel(address, options)
    with open(ca_file, "rb") as file:
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(file.read()), options)
