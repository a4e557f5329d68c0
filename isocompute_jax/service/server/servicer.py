"""The sampler service around an engine: sampler.proto, method by method."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hmac
import itertools
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable

import grpc

from isocompute_jax.records.checksums import weights_digest
from isocompute_jax.service.proto import convert, sampler_pb2_grpc
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import Refusal, host_id, invalid, same_run, shown
from isocompute_jax.service.server.engines.base import (
    Engine,
    EngineError,
    HalfTakenError,
    NotTakenError,
    ReceivingEngine,
)
from isocompute_jax.service.server.groups import MOST_CANCELLED, Groups, checked_request, gathered
from isocompute_jax.service.server.metrics import Metrics
from isocompute_jax.service.server.refusals import CallLog
from isocompute_jax.service.weights.check import listed_tensors
from isocompute_jax.service.weights.files import StagingArea, WeightFile
from isocompute_jax.service.weights.nccl import RECEIVING, UNIQUE_ID_BYTES, TransferError
from isocompute_jax.service.weights.receive import WeightUpdate, WeightUpdates

LEASE_S = 10.0
"""A learner that has not asked for the status for so long no longer holds the server."""
REMEMBERED = 64
"""Starts of runs that later ones have replaced."""

log = logging.getLogger(__name__)


class Servicer(sampler_pb2_grpc.SamplerServicer):
    """Implements the service, behind the interceptor of `refusals`: a call that raises `Refusal` ends with its status.

    Args:
      engine: started already.
      area: where weights are put together.
      token: what `UpdateWeights` asks for; empty for nothing.
      wait_for_weights: serve only after the first update.
      groups: those that are in the server; none yet.
      max_message_bytes: what the server was told to take; only reported.
      peer_timeout_s: longest wait for a sender of weights, and for a caller to read completions.
      changed: called when `serving` may have changed.
    """

    def __init__(
        self,
        engine: Engine,
        area: StagingArea,
        *,
        token: str,
        wait_for_weights: bool,
        groups: Groups,
        max_message_bytes: int,
        peer_timeout_s: float,
        changed: Callable[[], Awaitable[None]],
    ):
        self._engine = engine
        self._token = token.encode()
        self.groups = groups
        self._max_message_bytes = max_message_bytes
        self._peer_timeout_s = peer_timeout_s
        self._changed = changed
        self.calls = CallLog()
        self._transfer: int | None = None  # the communicator that the engine's ranks are members of
        self.updates = WeightUpdates(area, self._admit_weights, self._apply, peer_timeout_s=peer_timeout_s)
        self.metrics = Metrics()
        self.failure = ""
        self.failed = asyncio.Event()
        self.stopping = False
        self._has_weights = not wait_for_weights
        self._session, self._version = "", 0
        self._replaced: collections.deque[str] = collections.deque(maxlen=REMEMBERED)
        self._asked = -math.inf
        self._open = asyncio.Event()
        self._open.set()
        self._incarnation = secrets.token_hex(8)
        self._host_id = host_id()
        self._base = weights_digest(engine.facts.model)
        self._began = self._applied = time.monotonic()
        self._watch()

    @property
    def serving(self) -> bool:
        """Whether groups are taken."""
        return self._has_weights and not self.failure and not self.stopping

    async def Sample(self, message: pb.SampleRequest, context: grpc.aio.ServicerContext) -> None:
        """Streams a group's completions as they finish."""
        request = checked_request(message, self._engine.facts)
        self._check_serving()
        owner = self._is_owner(message.session)
        place = self.groups.admitted(message.group_id, context.peer() or "", owner=owner, owner_here=self._taken)
        with place as group:
            while not self._open.is_set():
                await self._open.wait()
            self._check_serving()
            self._check_version(message)
            group.running = True
            drawn = 0
            replies = gathered(self._engine.generate(request), request.group_size)
            async with contextlib.aclosing(replies):
                async for ready in replies:
                    drawn += len(ready)
                    for reply in convert.completions_to_replies(ready, self._max_message_bytes):
                        await self._write(context, reply)
                    self.metrics.rollouts.inc(len(ready))
                    self.metrics.tokens.inc(sum(len(done.tokens) for _, done in ready))
            if drawn != request.group_size:
                raise EngineError(f"it gave {drawn} of {request.group_size} completions")

    async def _write(self, context: grpc.aio.ServicerContext, reply: pb.SampleReply) -> None:
        """Sends completions to a caller that reads them: one that does not would hold up updates that wait for it."""
        try:
            async with asyncio.timeout(self._peer_timeout_s):
                await context.write(reply)
        except TimeoutError:
            why = f"nobody has read the completions for {self._peer_timeout_s:g} s"
            raise Refusal(grpc.StatusCode.ABORTED, why) from None

    async def UpdateWeights(self, _: object, context: grpc.aio.ServicerContext) -> pb.UpdateWeightsReply:
        """Receives one sender's part of new weights."""
        self._check_taking_weights(context)

        async def read():
            message = await context.read()
            if isinstance(message, Refusal):
                raise message
            return None if message is grpc.aio.EOF else message  # pyright: ignore[reportAttributeAccessIssue]

        async def receiving() -> None:
            await context.send_initial_metadata(((RECEIVING, "1"),))

        return await self.updates.receive(read, peer=context.peer() or "", receiving=receiving)

    async def OpenTransfer(
        self, message: pb.OpenTransferRequest, context: grpc.aio.ServicerContext
    ) -> pb.OpenTransferReply:
        """Makes the engine's ranks members of a communicator with the learner, in place of the former one."""
        self._check_taking_weights(context)
        engine, facts = self._receiving_engine(), self._engine.facts
        if len(message.unique_id) != UNIQUE_ID_BYTES:
            raise invalid(f"unique_id has {len(message.unique_id)} bytes; NCCL's have {UNIQUE_ID_BYTES}")
        if message.world != 1 + facts.devices:
            raise invalid(f"world = {message.world} must be {1 + facts.devices}: the learner and the engine's ranks")
        tensors = listed_tensors(message.tensors, facts.tensors)
        if not all(message.buckets) or sum(message.buckets) != len(tensors):
            raise invalid(f"buckets must each hold a tensor, and together the {len(tensors)} that are listed")
        rest = iter(tensors)
        buckets = tuple(tuple(itertools.islice(rest, count)) for count in message.buckets)
        self._transfer = None
        try:
            await engine.open_transfer(message.unique_id, buckets)
        except TransferError as error:
            raise _precondition(f"no weights come by NCCL: {error}") from error
        self._transfer = message.transfer
        log.info("weights come by NCCL %s", facts.nccl)
        return pb.OpenTransferReply()

    async def Status(self, message: pb.StatusRequest, context: grpc.aio.ServicerContext) -> pb.StatusReply:
        """Answers from what the server knows itself."""
        del context
        owner = self._is_owner(message.session)
        if owner:
            self._asked = -math.inf if message.release else time.monotonic()
        facts = self._engine.facts
        running = self.groups.running
        return pb.StatusReply(
            model=facts.model,
            engine=facts.engine,
            engine_version=facts.engine_version,
            incarnation=self._incarnation,
            host_id=self._host_id,
            session=self._session if owner else shown(self._session),
            version=self._version,
            serving=self.serving,
            running_groups=running,
            waiting_groups=len(self.groups) - running,
            tokens_generated=self._engine.tokens_generated,
            uptime_s=time.monotonic() - self._began,
            limits=pb.Limits(
                max_model_len=facts.max_model_len,
                max_group_size=facts.max_group_size,
                max_groups=self.groups.limit,
                max_message_bytes=self._max_message_bytes,
            ),
            tensors=convert.tensors_to_messages(facts.tensors) if message.tensors else (),
            vocab_size=facts.vocab_size,
            taken=self._taken,
            routing=facts.routing,
            support=facts.support,
            turns=True,
            lacks=facts.lacks,
            no_token_versions=not facts.token_versions,
            devices=pb.Devices(kind=facts.device_kind, count=facts.devices),
            draining=self.stopping and not self.failure,
            nccl=facts.nccl,
            base=self._base,
        )

    async def Cancel(self, message: pb.CancelRequest, context: grpc.aio.ServicerContext) -> pb.CancelReply:
        """Ends groups with ABORTED."""
        del context
        if len(message.group_ids) > MOST_CANCELLED:
            raise invalid(f"group_ids has {len(message.group_ids)} names; one call cancels at most {MOST_CANCELLED}")
        return pb.CancelReply(cancelled=self.groups.cancel(message.group_ids))

    async def fail(self, why: str) -> None:
        """The engine is lost: every group ends, and no other is taken."""
        if not self.failure:
            self.failure = why
            log.error("the engine has failed: %s", why)
            self.groups.interrupt(self._refusal_of_failure())
            self.failed.set()
            await self._changed()

    @property
    def _taken(self) -> bool:
        """Whether the learner whose weights serve is there."""
        return time.monotonic() - self._asked < LEASE_S

    def _is_owner(self, session: str) -> bool:
        """Whether that names the session whose weights serve, which only its learner can (`proto.terms`)."""
        return bool(session) and hmac.compare_digest(session.encode(), self._session.encode())

    def _admit_weights(self, header: pb.WeightsHeader, incoming: pb.WeightsHeader | None) -> None:
        """Refuses weights older than those of the same session, and those of another learner while one is there."""
        if header.session in self._replaced:
            raise _precondition(
                f"this start of {shown(header.session)!r} was replaced by a later one: only one of them can be alive"
            )
        owner, version = self._session, self._version
        if incoming is not None:
            owner, version = incoming.session, incoming.version
        if header.session == owner:
            if header.version < version:
                raise _precondition(
                    f"version {header.version} is older than version {version} of the same session: versions only "
                    "rise; to go back, begin another session"
                )
        elif owner and (incoming is not None or self._taken) and not same_run(header.session, owner):
            raise _precondition(
                f"the server is used by another learner, {shown(owner)!r}: it is free {LEASE_S:g} s after that one has "
                "asked for the status the last time, or once it releases the server; another start of the same run "
                "(RUN#START) may have it at once"
            )

    def _check_serving(self) -> None:
        if self.failure:
            raise self._refusal_of_failure()
        if self.stopping:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        if not self._has_weights:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "the server has no weights yet: send them by UpdateWeights")

    def _check_version(self, message: pb.SampleRequest) -> None:
        if message.HasField("session") and message.session not in (self._session, shown(self._session)):
            asked, ours = f"session {message.session!r}", f"session {shown(self._session)!r}"
        elif message.HasField("policy_version") and message.policy_version != self._version:
            asked, ours = f"version {message.policy_version}", f"version {self._version}"
        else:
            return
        raise _precondition(f"weights of {asked} were asked for; the server has {ours}")

    def _check_taking_weights(self, context: grpc.aio.ServicerContext) -> None:
        """Refuses a caller without the token, and everybody once the engine has failed or the server stops."""
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        given = given if isinstance(given, bytes) else given.encode()
        if self._token and not hmac.compare_digest(given, b"Bearer " + self._token):
            raise Refusal(
                grpc.StatusCode.UNAUTHENTICATED,
                "weights are taken only with the server's token: metadata `authorization: Bearer TOKEN`",
            )
        if self.failure or self.stopping:
            self._check_serving()

    def _refusal_of_failure(self) -> Refusal:
        return Refusal(grpc.StatusCode.UNAVAILABLE, f"the engine has failed: {self.failure}")

    def _receiving_engine(self) -> ReceivingEngine:
        if not isinstance(self._engine, ReceivingEngine) or not self._engine.facts.nccl:
            raise _precondition(f"the engine {self._engine.facts.engine} takes none by NCCL: send a file, or chunks")
        return self._engine

    async def _apply(self, update: WeightUpdate, weights: WeightFile | None) -> pb.UpdateWeightsReply:
        """Takes complete weights to the engine; new groups are held back until they serve."""
        header, began = update.header, time.monotonic()
        continued = header.in_flight in (pb.IN_FLIGHT_CONTINUE, pb.IN_FLIGHT_RECOMPUTE)
        if continued and not self._engine.facts.token_versions:
            raise invalid("in_flight: rollouts cannot continue: the engine does not say which weights drew each token")
        self._open.clear()
        try:
            # Under another learner's weights nobody's groups continue: their versions would look like those of his own.
            foreign = bool(self._session) and header.session != self._session
            if foreign or header.in_flight == pb.IN_FLIGHT_ABORT:
                refusal = Refusal(grpc.StatusCode.ABORTED, f"weights of version {header.version} arrived")
                self.groups.interrupt(refusal, running=True)
            if foreign or header.in_flight in (pb.IN_FLIGHT_ABORT, pb.IN_FLIGHT_WAIT):
                await self.groups.emptied(running=True)
            update.committed = True
            paused_s = await self._given_to_engine(update, weights)
            self._write_down(update)
            if header.session != self._session and same_run(header.session, self._session):
                self._replaced.append(self._session)
            self._session, self._version, self._has_weights = header.session, header.version, True
            self._asked = self._applied = time.monotonic()
            apply_s = self._applied - began
            self.metrics.update_seconds.observe(apply_s)
            await self._changed()
            return pb.UpdateWeightsReply(version=header.version, apply_s=apply_s, paused_s=paused_s)
        finally:
            self._open.set()

    async def _given_to_engine(self, update: WeightUpdate, weights: WeightFile | None) -> float:
        """Has the engine serve the weights; the seconds with sampling stopped.

        Raises:
          Refusal: it does not; the old weights serve on, or the server fails, or waits for whole weights.
        """
        version, recompute = update.header.version, update.header.in_flight == pb.IN_FLIGHT_RECOMPUTE
        try:
            if weights is not None:
                return await self._engine.update_weights(weights, version=version, recompute=recompute)
            engine = self._receiving_engine()
            if update.transfer != self._transfer:
                raise _precondition("the communicator of these weights is not open any more: open another")
            return await engine.take_sent_weights(update.receiving, version=version, recompute=recompute)
        except Refusal:
            raise
        except NotTakenError as error:
            raise Refusal(grpc.StatusCode.DATA_LOSS, str(error)) from error
        except HalfTakenError as error:
            self._transfer, self._has_weights = None, False
            await self._changed()
            why = f"half of version {version} came, and the server needs whole weights: {error}"
            raise Refusal(grpc.StatusCode.DATA_LOSS, why) from error
        except Exception as error:
            # Whatever it was, nobody knows what the engine serves now.
            if not isinstance(error, EngineError):
                log.exception("the engine raised this:")
            await self.fail(f"version {version} could not be applied: {error}")
            raise self._refusal_of_failure() from error

    def _write_down(self, update: WeightUpdate) -> None:
        """Who has replaced which weights."""
        header, kind = update.header, "Weights updated"
        if header.session != self._session:
            over = self._session and not same_run(header.session, self._session)
            kind = "Server taken over" if over else "Session begun"
        before = f"; before: version {self._version} of {shown(self._session)!r}" if self._session else ""
        text = f"version {header.version} of {shown(header.session)!r}, from {update.peer}{before}"
        self.calls.happened(kind, text, warn=kind == "Server taken over")

    def _watch(self) -> None:
        watch, groups = self.metrics.watch, self.groups
        watch("groups_running", "Groups that the engine works on.", lambda: groups.running)
        watch("groups_waiting", "Groups that wait for an update.", lambda: len(groups) - groups.running)
        watch("weight_senders", "Senders of the update that is coming in.", lambda: self.updates.senders)
        watch("version", "Version of the weights.", lambda: self._version)
        watch("serving", "1 while groups are taken.", lambda: self.serving)
        watch("max_groups", "Groups that may be in the server at once.", lambda: groups.limit)
        watch("uptime_seconds", "Since the server started.", lambda: time.monotonic() - self._began)
        watch(
            "weights_age_seconds",
            "Since the weights that serve were put in; since the start where they are the model directory's.",
            lambda: time.monotonic() - self._applied,
        )
        self.metrics.watch_total(
            "drawn_tokens",
            "Tokens that the engine drew, those of rollouts that are not done, or were lost, included.",
            lambda: self._engine.tokens_generated,
        )


def _precondition(message: str) -> Refusal:
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, message)
