"""One endpoint of a fleet: whether it is up, makes progress and does what the run needs, and which weights it has."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping

import grpc

from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.tokens import SAMPLER_TOKEN
from isocompute_jax.service.client.connection import Endpoint, reason_of, why
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.client.weight_sender import Sender, ShareLostError, Weights
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import NOT_FINITE, same_run

MAX_TAKEOVERS = 3
TAKEOVER_WINDOW_S = 600.0
KEEP_AWAY_S = 15.0
"""Longer than a server counts as taken after its learner has gone."""

POLL_S = 1.0
SPARED_POLLS = 3
"""So many polls in a row are left out while rollouts come: that they do says as much."""
MAX_POLL_DEADLINE_S = 10.0
MOST_DEVICES = 1 << 16
MAX_STUCK_WAITS = 6
MAX_REFUSALS = 3
"""Weights refused so often in a row will never be taken; once may be a call that was given up and is not gone yet."""
MAX_RETRY_S = 30.0
NOT_REACHED = "not reached yet"
PATIENCE_S = 5.0
"""An endpoint that has not been reached yet for longer is spoken of, once."""

LOG = logging.getLogger(__name__)


def refusal(code: grpc.StatusCode, service: ServiceConfig | None = None) -> str:
    """What no retry can fix, as a message; empty for other codes. `service` says whether a token was shown."""
    if code is grpc.StatusCode.UNAUTHENTICATED and service is not None and not service.token():
        return f"needs a token, and none was given: set {CONFIG.service.token_file}, or {SAMPLER_TOKEN}"
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return f"refuses the token of {CONFIG.service.token_file} (without it {SAMPLER_TOKEN} of the environment)"
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        adapters = f"with {CONFIG.lora.served} its --lora_rank and --lora_targets those of config.lora"
        model = f"its --model and --dtype must be those of {CONFIG.model} and {CONFIG.dtype}"
        return f"refuses the weights ({model}, {adapters})"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"is no sampler server ({CONFIG.service.endpoints})"
    return ""


def lack(
    status: pb.StatusReply, *, routing: bool, support: bool, turn_tokens: int, token_versions: bool, base: str = ""
) -> str:
    """What the run needs and the server, by its `status`, cannot do, and the remedy; empty for nothing.

    It may need the experts that tokens went to (`routing`), which tokens could be drawn (`support`), room for
    `turn_tokens`, the longest prompt and completion of rollouts drawn in turns (0 where none are), which weights drew
    each token (`token_versions`), as these may change meanwhile, and the weights of the digest `base` beside adapters.
    """
    if base and status.base and status.base != base:
        return (
            f"has other weights in --model={status.model} than {CONFIG.model}, beside which adapters are trained "
            f"({CONFIG.lora.served}): start it with the same ones"
        )
    if routing and not status.routing:
        return (
            f"does not say which experts it chose, and {CONFIG.loss.routing} asks for them: start it with --routing, "
            f"which the engine jax has, or set {CONFIG.loss.routing} to 'own'"
        )
    if support and not status.support:
        return (
            f"does not say which tokens could be drawn, and {CONFIG.sampling.top_k} asks for them: set it to 0 and "
            f"{CONFIG.sampling.top_p} to 1, or take a stock vLLM (--engine=stock) with --return-sampling-mask"
        )
    if turn_tokens and not status.turns:
        return (
            f"is of a release that draws no rollout in turns, as {CONFIG.sampling.thinking} and {CONFIG.sampling.tool} "
            "need it: start servers of this release"
        )
    if turn_tokens > status.limits.max_model_len:
        return (
            f"holds {status.limits.max_model_len} tokens, and rollouts drawn in turns have up to {turn_tokens} "
            f"({CONFIG.sampling.max_prompt_tokens} and {CONFIG.sampling.max_tokens}): start it with "
            f"--max_model_len={turn_tokens}, or lower one of the two"
        )
    if token_versions and status.no_token_versions:
        return (
            f"runs {status.engine} {status.engine_version}, which does not say which weights drew each token, and "
            f"{CONFIG.asynchrony}='in_flight' needs that: set it to 'boundary' or 'phases', or start servers with a "
            f"newer {status.engine}"
        )
    return ""


@dataclasses.dataclass(frozen=True)
class MemberHealth:
    """What the learner knows of an endpoint."""

    endpoint: str  # `host:port` or `unix:PATH`
    up: bool  # it answers and makes progress
    version: int | None  # of the weights that it serves for this run
    receiving_weights: bool  # newer ones are on their way to it
    groups: int  # that it was sent and that are not back
    rollouts: int  # of these groups
    leaving: bool  # it draws what it was sent, and is sent nothing more: it is off the list, or is shutting down
    # As it said last: its devices, tokens drawn since it started, groups that its engine works on, and those that wait
    # there for an update.
    devices: int
    device_kind: str
    tokens_drawn: int
    groups_running: int
    groups_waiting: int
    silent_s: float  # since it last answered
    down_s: float  # since it was taken out; 0 while it is up
    error: str  # why it is not up, or takes no weights; empty where it does
    last_error: str  # the last of these, kept when it is up again; empty where there was none


class Meter:
    """Seconds x devices of one server, by kind, from its first answer on until it leaves the fleet.

    A server that is down counts with the devices that it had: they are still lent to the run. It may be read in any
    thread.
    """

    def __init__(self) -> None:
        # One value, which is replaced and never changed: when it was made, what had come together, what is held since.
        self._known: tuple[float, Mapping[str, float], tuple[str, int]] = 0.0, {}, ("", 0)

    @property
    def devices(self) -> tuple[str, int]:
        """Kind and number of what it holds; `("", 0)` before the first answer."""
        return self._known[2]

    def hold(self, kind: str, count: int) -> None:
        """It has answered, and says so many devices."""
        if self.devices != (kind, count):
            self._known = time.monotonic(), self.seconds(), (kind, count)

    def seconds(self) -> dict[str, float]:
        """Kind -> seconds x devices."""
        since, before, (kind, count) = self._known
        total = dict(before)
        if count:
            total[kind] = total.get(kind, 0.0) + count * (time.monotonic() - since)
        return total


class Member:
    """An endpoint, watched. Others read its attributes, and set `suspect` and `unlisted` alone.

    Args:
      target, sender: its address, and what brings weights to it.
      lack: says of its status what the run needs and it cannot do; empty for nothing.
      changed: called when the member may have become usable, or unusable.
      fail: called with an error that ends the run.
    """

    def __init__(
        self,
        target: str,
        sender: Sender,
        *,
        lack: Callable[[pb.StatusReply], str],
        changed: Callable[[], None],
        fail: Callable[[Exception], None],
    ):
        self.endpoint = Endpoint(target, sender.service)
        self.target = target
        self.status = pb.StatusReply()  # its last answer
        self.answered_once = asyncio.Event()  # the first answer, or its absence, is known
        self.up = False  # it answers and makes progress
        self.error = NOT_REACHED  # why it is not up
        self.down_since = time.monotonic()
        self.unlisted = False  # it was taken off the list of endpoints
        self.weights: Weights | None = None  # that it is known to serve
        self.failing = False  # the last push to it failed
        self.suspect = False  # a group was lost on it; nothing is sent to it before it has answered again
        self.tasks: dict[asyncio.Task, int] = {}  # what waits for a group that it samples -> rollouts
        self.load = 0  # rollouts of these
        self.meter = Meter()  # what its devices have cost so far
        self._service = sender.service
        self._sender = sender
        self._lack = lack
        self._changed = changed
        self._fail = fail
        self._wanted: Weights | None = None
        self._sent: Weights | None = None
        self._push: asyncio.Task | None = None
        self._pushes = 0
        self._failures = 0
        self._last_warning = ""
        self._answered = self._progress = time.monotonic()
        self._not_before = self._back_at = 0.0
        self._stuck = 0
        self._owned = ""  # the incarnation that this learner's weights came to
        self._announced = False
        self._rival_since = 0.0
        self._takeovers: collections.deque[float] = collections.deque()

    def health(self) -> MemberHealth:
        """How it is now."""
        now = time.monotonic()
        return MemberHealth(
            endpoint=self.target,
            up=self.up,
            version=None if self.weights is None else self.weights.version,
            receiving_weights=self.pushing,
            groups=len(self.tasks),
            rollouts=self.load,
            leaving=self.leaving,
            devices=self.meter.devices[1],
            device_kind=self.meter.devices[0],
            tokens_drawn=self.status.tokens_generated,
            groups_running=self.status.running_groups,
            groups_waiting=self.status.waiting_groups,
            silent_s=round(now - self._answered, 1),
            down_s=0.0 if self.up else round(now - self.down_since, 1),
            error="" if self.up and not self.failing else self.error,
            last_error="" if self.error == NOT_REACHED else self.error,
        )

    @property
    def leaving(self) -> bool:
        """Whether it draws what it was sent, and is sent nothing more: no group, and no weights."""
        return self.unlisted or self.status.draining

    @property
    def pushing(self) -> bool:
        """Whether weights are on their way to it."""
        return self._push is not None

    @property
    def has_room(self) -> bool:
        """Whether it may be sent another group now."""
        limit = 0 if self.leaving else self.status.limits.max_groups
        return len(self.tasks) < limit and time.monotonic() >= self._not_before

    def enter(self, task: asyncio.Task, rollouts: int) -> None:
        """Books a group that it is to sample."""
        if not self.tasks:
            self._progress = time.monotonic()
        self.tasks[task] = rollouts
        self.load += rollouts

    def leave(self, task: asyncio.Task) -> None:
        """The group is done, or lost."""
        self.load -= self.tasks.pop(task)

    def heard(self) -> None:
        """A rollout has come: it lives, and draws."""
        self._answered = self._progress = time.monotonic()
        self._stuck = 0

    def hold(self, seconds: float) -> None:
        """It is full: nothing is sent to it for so long."""
        self._not_before = time.monotonic() + seconds

    def want(self, parcel: Weights) -> None:
        """From now on it is to serve `parcel`; what was on its way is given up."""
        self._wanted = parcel
        self._give_up_push()
        if self.up and not self.leaving:
            self._start_push(parcel)

    def leave_list(self) -> None:
        """It was taken off the list: it draws what it was sent, and is sent nothing more."""
        self.unlisted = True
        self.error = "was taken off the list"
        self._give_up_push()

    async def watch(self) -> None:
        """Looks after it until cancelled."""
        try:
            while True:
                await self._poll()
                self.answered_once.set()
                for _ in range(1 + SPARED_POLLS):
                    before = self._answered
                    await asyncio.sleep(min(POLL_S, self._service.stall_s / 2))
                    if self._answered == before or self.suspect or self.pushing or not self.up:
                        break
        finally:
            if self._push is not None:
                self._push.cancel()
                await asyncio.wait([self._push])

    async def _poll(self) -> None:
        pushes = self._pushes
        try:
            deadline = min(self._service.stall_s, MAX_POLL_DEADLINE_S)
            status = await self.endpoint.status(timeout=deadline, session=self._sender.session)
        except grpc.aio.AioRpcError as error:
            self._on_no_answer(error)
            return
        now = time.monotonic()
        self._answered = now
        groups, devices = status.limits.max_groups, status.devices.count
        if not groups or devices > MOST_DEVICES:
            self.take_out(f"says of itself what cannot be: limits.max_groups = {groups}, devices.count = {devices}")
            return
        if missing := self._lack(status):
            self._fail(InputError(f"{self.target} {missing}"))
        if status.tokens_generated != self.status.tokens_generated:
            self._progress, self._stuck = now, 0
        if not (self.tasks or self.pushing or status.running_groups):
            self._progress = now
        if status.draining and not self.status.draining:
            LOG.info("sampler %s is shutting down: it finishes %d groups", self.target, len(self.tasks))
        self.status = status
        self.meter.hold(status.devices.kind, status.devices.count)
        if self.up and now - self._progress > self._service.stall_s:
            self._stuck = min(self._stuck + 1, MAX_STUCK_WAITS)
            self._back_at = now + self._service.stall_s * 2 ** (self._stuck - 1)
            self.take_out(f"is stuck: it has work, but drew no token for {now - self._progress:.0f} s")
        elif self.leaving:
            self.error = "was taken off the list" if self.unlisted else "is shutting down"
            self._give_up_push()
            self._changed()
        elif now >= self._back_at and pushes == self._pushes and not self.pushing:
            self._reconcile(status)

    def _on_no_answer(self, error: grpc.aio.AioRpcError) -> None:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            self._fail(InputError(f"{self.target} {refusal(error.code())}: {error.details()}"))
        silent = time.monotonic() - self._answered
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            self.take_out(f"cannot be reached: {why(error, self._service)}")
        elif not self.up:
            self.error = "does not answer"
        elif silent > self._service.stall_s:
            self.take_out(f"has not answered for {silent:.0f} s")

    def _reconcile(self, status: pb.StatusReply) -> None:
        """Compares what it serves with what it should serve."""
        wanted = self._wanted
        ours = status.session == self._sender.session
        if self._owned == status.incarnation and not ours:
            self._owned = ""
            self._on_taken_over(status.session)
        self.suspect = False
        # An earlier start of this run is over: only one of them can be alive.
        if status.taken and not ours and not self._owned and not same_run(status.session, self._sender.session):
            self._on_rival(status.session)
            return
        self._rival_since = 0.0
        if wanted is None:
            self._come_up()
        elif ours and status.version == wanted.version and self._sent is wanted:
            if status.serving:
                self.weights = wanted
                self._announce(wanted)
                self._come_up()
            else:
                self.take_out("is shutting down, or its engine has failed")
        else:
            self.weights = None
            self._come_up()
            self._start_push(wanted)

    def _on_taken_over(self, rival: str) -> None:
        """Another learner has replaced the weights of this one, which ends the run if it happens again and again."""
        now = time.monotonic()
        self._takeovers.append(now)
        while now - self._takeovers[0] > TAKEOVER_WINDOW_S:
            self._takeovers.popleft()
        LOG.warning("%s was given other weights by the learner %r", self.target, rival)
        if len(self._takeovers) >= MAX_TAKEOVERS:
            message = (
                f"{self.target} is used by another learner, {rival!r}, which keeps replacing the weights of this one, "
                f"{self._sender.session!r}: give every learner servers of its own ({CONFIG.service.endpoints}), and a "
                f"token of its own ({CONFIG.service.token_file})"
            )
            self._fail(RunError(message))

    def _on_rival(self, rival: str) -> None:
        """Another learner is at work on it, which ends the run if it stays."""
        self.take_out(f"is used by another learner, {rival!r}")
        now = time.monotonic()
        self._rival_since = self._rival_since or now
        if now - self._rival_since > KEEP_AWAY_S:
            message = (
                f"{self.target} is used by another learner, {rival!r}: give every learner servers of its own "
                f"({CONFIG.service.endpoints}), or wait until that one has ended"
            )
            self._fail(RunError(message))

    def _come_up(self) -> None:
        if not self.up:
            self.up = True
            self._progress = time.monotonic()
        self._changed()

    def _announce(self, parcel: Weights) -> None:
        if not self._announced:
            self._announced, self._last_warning = True, ""
            LOG.info("sampler %s is up, with the weights of version %d", self.target, parcel.version)

    def take_out(self, reason: str) -> None:
        """Stops using it: its groups go elsewhere. It is watched on."""
        self.error = reason
        self.weights = None
        self._announced = False
        if self.up:
            self.up = False
            self.down_since = time.monotonic()
            if reason != self._last_warning:
                LOG.warning("sampler %s is taken out: it %s", self.target, reason)
            self._last_warning = reason
        elif not self._last_warning and time.monotonic() - self.down_since > PATIENCE_S:
            LOG.warning("sampler %s is not in use yet: it %s", self.target, reason)
            self._last_warning = reason
        self._give_up_push()
        for task in self.tasks:
            task.cancel()
        self._changed()

    def _give_up_push(self) -> None:
        if self._push is not None:
            self._push.cancel()
            self._push = None

    def _start_push(self, parcel: Weights) -> None:
        self._pushes += 1
        self._progress = time.monotonic()

        def progress() -> None:
            self._progress = time.monotonic()

        sending = self._sender.send(parcel, self.endpoint, self.status.host_id, sent=progress)
        task = self._push = asyncio.create_task(sending)
        task.add_done_callback(lambda done: self._on_sent(parcel, done))

    def _on_sent(self, parcel: Weights, task: asyncio.Task) -> None:
        if task is not self._push:
            return  # given up: taken out, or a newer parcel is on its way
        self._push = None
        self._pushes += 1
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.weights = self._sent = parcel
            self._owned = self.status.incarnation
            self.failing = self.suspect = False
            self._failures = 0
            self._announce(parcel)
            self._changed()
        elif NOT_FINITE in reason_of(error):
            why = (
                f"Training has diverged: begin again with a lower {CONFIG.optimizer.base_lr}, from a checkpoint if any"
            )
            if parcel.version == 0:
                why = f"Nothing was trained yet: look at the weights of {CONFIG.model}"
            message = f"{self.target} refuses the weights of version {parcel.version}: {reason_of(error)}. {why}"
            self._fail(RunError(message))
        elif isinstance(error, ShareLostError | grpc.aio.AioRpcError):
            self._on_push_failed(parcel, error)
        elif isinstance(error, Exception):
            self._fail(error)

    def _on_push_failed(self, parcel: Weights, error: ShareLostError | grpc.aio.AioRpcError) -> None:
        """The next push waits, longer from time to time; or the run ends, where no retry can mend it."""
        self.failing = True
        self._failures += 1
        self._back_at = time.monotonic() + min(2.0 ** (self._failures - 2), MAX_RETRY_S)
        if isinstance(error, ShareLostError):
            final = refusal(grpc.StatusCode.UNAUTHENTICATED) if error.refused else ""
        elif error.code() is grpc.StatusCode.INVALID_ARGUMENT and self._failures < MAX_REFUSALS:
            final = ""
        else:
            final = refusal(error.code(), self._service)
        if final:
            self._fail(InputError(f"{self.target} {final}: {reason_of(error)}"))
        else:
            self.take_out(f"did not take the weights of version {parcel.version}: {reason_of(error)}")
