"""Groups over endpoints: which group is sampled where, again where need be, and what ends the run.

All of it runs on one event loop. A group is kept or drawn again whole: keeping only the rollouts that had finished
when an endpoint died would favour short ones. At any time at most one call samples a group, so each is delivered once.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence

import grpc

from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.service.client.connection import reason_of, untrusted
from isocompute_jax.service.client.member import MAX_RETRY_S, Member, MemberHealth, Meter, lack
from isocompute_jax.service.client.service_config import EndpointsFile, ServiceConfig
from isocompute_jax.service.client.weight_broadcast import KeptWeights, ServerLinks
from isocompute_jax.service.client.weight_sender import Orders, Sender, Weights
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import PUSHBACK

MAX_BAD_REPLIES = 5
MAX_LOSSES = 50
"""Of one group, on servers that live on: far more than faults explain, so it must be the group that they fail at."""
LEAST_PUSHBACK_S = 0.01
WATCH_S, CANCEL_S, REMIND_S = 1.0, 2.0, 60.0
PATIENCE_S = 2.0
"""An absence that is over sooner, or ends the run sooner, is not worth a message."""

REFUSED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION)
"""Nothing was drawn."""
FATAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FleetHealth:
    """What the learner knows of its servers."""

    groups_queued: int  # that no server has room for, or that wait for weights
    redrawn_rollouts: int  # that were asked for again so far
    members: list[MemberHealth]


class Dispatcher:
    """Sends groups to members and delivers what comes back; made and used on one running event loop.

    Args:
      sender, routing, support, turn_tokens, base: as of `fleet.RemoteSampler`.
      deliver: called with the lane and a finished group.
      on_failure: called once, when `failure` is set.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        routing: bool,
        support: bool,
        turn_tokens: int,
        base: str,
        deliver: Callable[[str, RolloutGroup], None],
        on_failure: Callable[[], None],
    ):
        self.failure: Exception | None = None  # what ended the run
        self.redrawn_rollouts = 0  # asked for again, because the call that should have brought them was lost
        self._service = service = sender.service
        self._session = sender.session
        self._in_flight = sender.in_flight
        made = sender.config
        self._checked = functools.partial(
            convert.checked_completion,
            vocab_size=made.vocab_size,
            experts=(made.num_layers, made.experts_per_token, made.num_experts) if routing else None,
            support=support,
        )
        self._deliver = deliver
        self._on_failure = on_failure
        sender.orders = Orders(sender.team) if sender.team.count > 1 else None
        self._parcel: Weights | None = None
        self._queue: collections.deque[PendingGroup] = collections.deque()
        self._running: dict[asyncio.Task, tuple[Member, PendingGroup]] = {}
        self._changed = asyncio.Event()
        self._nonce = secrets.token_hex(4)
        self._groups = 0
        self._absence = Absence(service)
        self._closing = False
        self._make_member = functools.partial(
            Member,
            sender=sender,
            lack=functools.partial(
                lack,
                routing=routing,
                support=support,
                turn_tokens=turn_tokens,
                base=base,
                token_versions=self._in_flight in ("continue", "recompute"),
            ),
            changed=self._on_change,
            fail=self._fail,
        )
        self._file = EndpointsFile(service.endpoints_file) if service.endpoints_file else None
        self._members: list[Member] = []
        self._meters: list[Meter] = []
        self._watches: dict[Member | None, asyncio.Task] = {}
        for target in self._file.read() if self._file else service.targets:
            self._add(target)
        self._watch(None, self._watch_all())

    @property
    def gone(self) -> bool:
        """Whether every endpoint is gone, and the run waits for one."""
        return self._absence.since is not None

    def health(self) -> FleetHealth:
        """How the fleet is now; to be asked on its event loop."""
        return FleetHealth(len(self._queue), self.redrawn_rollouts, [member.health() for member in self._members])

    @property
    def device_seconds(self) -> dict[str, float]:
        """Kind -> seconds x devices of the servers so far, of those that have left too; in any thread."""
        total: collections.Counter[str] = collections.Counter()
        for meter in self._meters:
            total.update(meter.seconds())
        return dict(total)

    def submit(self, requests: Sequence[SampleRequest], lane: str) -> None:
        """Queues groups."""
        for request in requests:
            self._groups += 1
            self._queue.append(PendingGroup(request, lane, self._groups))
        self._dispatch()

    async def distribute(self, parcel: Weights, links: ServerLinks | None = None) -> None:
        """Brings `parcel` to every member that is up; returns when they have it, and there is one. Raises `failure`.

        By `links` `KeptWeights` go to the members that can, in their round, which is closed then.
        """
        if links is not None and isinstance(parcel, KeptWeights):
            try:
                for member in list(self._members):
                    await member.answered_once.wait()
                able = [member for member in self._members if member.up and not member.leaving]
                parcel.round.open(await links.prepare(able))
                return await self.distribute(parcel)
            finally:
                parcel.round.close()
        self._parcel = parcel
        for member in self._members:
            member.want(parcel)
        for member in list(self._members):
            await member.answered_once.wait()
        while self.failure is None:
            able = [member for member in self._members if member.up and not member.failing and not member.leaving]
            late = any(member.weights is not parcel for member in able)
            if not late and any(member.weights is parcel for member in self._members):
                return
            self._changed.clear()
            await self._changed.wait()
        raise self.failure

    async def close(self) -> None:
        """Cancels what runs, on the servers too, and closes the connections."""
        self._closing = True
        self._queue.clear()
        names = collections.defaultdict(list)
        for task, (member, group) in self._running.items():
            names[member].append(self._name(group))
            task.cancel()
        cancels = [member.endpoint.cancel(ids, timeout=CANCEL_S) for member, ids in names.items() if member.up]
        releases = [
            member.endpoint.status(timeout=CANCEL_S, session=self._session, release=True)
            for member in self._members
            if member.up
        ]
        tasks = [*self._watches.values(), *self._running]
        for task in self._watches.values():
            task.cancel()
        await asyncio.gather(*cancels, *tasks, return_exceptions=True)
        await asyncio.gather(*releases, return_exceptions=True)
        await asyncio.gather(*(member.endpoint.close() for member in self._members), return_exceptions=True)

    def _add(self, target: str) -> None:
        member = self._make_member(target)
        self._members.append(member)
        self._meters.append(member.meter)
        self._watch(member, member.watch())

    def _watch(self, member: Member | None, watch: Coroutine) -> None:
        task = self._watches[member] = asyncio.create_task(watch)
        task.add_done_callback(self._on_watch_ended)

    def _enlist(self, targets: Sequence[str]) -> None:
        """The list has changed: who is new joins, and who is not on it leaves once what it draws is done."""
        known = {member.target: member for member in self._members}
        for target in targets:
            if target not in known:
                LOG.info("sampler %s joins", target)
                self._add(target)
                if self._parcel is not None:
                    self._members[-1].want(self._parcel)
            elif known[target].unlisted:
                LOG.info("sampler %s is listed again, and stays", target)
                known[target].unlisted = False
        for target in known.keys() - set(targets):
            if not known[target].unlisted:
                LOG.info("sampler %s leaves: it finishes %d groups", target, len(known[target].tasks))
                known[target].leave_list()
        self._on_change()

    async def _forget(self, member: Member) -> None:
        """It has left, and draws nothing: other learners may have it."""
        self._members.remove(member)
        watch = self._watches.pop(member)
        watch.cancel()
        await asyncio.wait([watch])
        member.answered_once.set()
        member.meter.hold("", 0)
        if member.up:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await member.endpoint.status(timeout=CANCEL_S, session=self._session, release=True)
        await member.endpoint.close()
        LOG.info("sampler %s has left", member.target)
        self._on_change()

    def _on_change(self) -> None:
        self._changed.set()
        found: dict[str, Member] = {}
        for member in self._members:
            if not member.up or member.unlisted or not member.status.incarnation:
                continue
            if (other := found.setdefault(member.status.incarnation, member)) is not member:
                where = CONFIG.service.endpoints_file if self._file else CONFIG.service.endpoints
                both = f"{other.target} and {member.target}"
                self._fail(InputError(f"{where}: {both} are one server under two names: list it once"))
        self._dispatch()

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self._changed.set()
            self._on_failure()

    def _on_watch_ended(self, task: asyncio.Task) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("the fleet's own fault", exc_info=error)
            self._fail(RunError(f"the fleet of samplers failed: {error!r}"))

    def _dispatch(self) -> None:
        """Sends queued groups to the members with the fewest rollouts outstanding, as long as any has room."""
        while self._queue and self._parcel is not None and self.failure is None and not self._closing:
            group, usable = self._queue[0], [member for member in self._members if self._usable(member)]
            # Who has sent of it what was not asked for is not asked again, as long as there is another.
            if any(member.up and not member.leaving and member not in group.bad_replies for member in self._members):
                usable = [member for member in usable if member not in group.bad_replies]
            if not usable:
                return
            member = min(usable, key=lambda member: member.load)
            self._queue.popleft()
            task = asyncio.create_task(self._sample(member, group))
            member.enter(task, group.request.group_size)
            self._running[task] = member, group
            task.add_done_callback(self._on_ended)

    def _usable(self, member: Member) -> bool:
        """With `abort` only the current weights will do; else older ones, while the current ones are on their way."""
        current = member.weights is self._parcel if self._in_flight == "abort" else member.weights is not None
        return member.up and current and not member.suspect and member.has_room

    def _name(self, group: PendingGroup) -> str:
        """A name that no other call has: a server may not have noticed yet that the last one is over."""
        return f"{self._nonce}/{group.lane}/{group.request.step}/{group.number}.{group.attempts}"

    async def _sample(self, member: Member, group: PendingGroup) -> None:
        """One call for a group.

        Raises:
          grpc.aio.AioRpcError: it was lost, or refused.
          BadReplyError: what came is not what was asked for.
        """
        parcel = self._parcel
        assert parcel is not None
        version = parcel.version if self._in_flight == "abort" else None
        group.begin()
        message = convert.request_to_message(
            group.request,
            group_id=self._name(group),
            session=self._session,
            policy_version=version,
        )
        call = member.endpoint.sample(message)
        try:
            async for reply in call:
                member.heard()
                for completion in reply.completions:
                    group.keep(
                        completion,
                        checked=self._checked,
                        version=version,
                        newest=(self._parcel or parcel).version,  # which may be later than this call
                        one_version=self._in_flight == "wait",
                    )
        finally:
            call.cancel()
        if len(group.finished) != group.request.group_size:
            raise BadReplyError(f"{len(group.finished)} of {group.request.group_size} rollouts came")

    def _on_ended(self, task: asyncio.Task) -> None:
        member, group = self._running.pop(task)
        member.leave(task)
        if self._closing:
            return
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            completions = [group.finished[i] for i in range(group.request.group_size)]
            self._deliver(group.lane, group.request.grouped(completions))
        else:
            self._on_lost(member, group, error)
        self._dispatch()

    def _on_lost(self, member: Member, group: PendingGroup, error: BaseException) -> None:
        """Queues a lost group again, before all others; or ends the run."""
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        reason = reason_of(error)
        pushback = _pushback_s(error)
        if code in FATAL:
            self._fail(InputError(f"sampler {member.target} refuses the group {group}: {reason}"))
            return
        if isinstance(error, BadReplyError) or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and pushback is None):
            group.bad_replies.append(member)
            LOG.warning("sampler %s: the group %s: %s", member.target, group, reason)
        elif not isinstance(error, grpc.aio.AioRpcError | asyncio.CancelledError):
            LOG.error("the fleet's own fault", exc_info=error)
            self._fail(RunError(f"the group {group} could not be sampled: {error!r}"))
            return
        if code not in REFUSED:
            group.losses += member.up
            self.redrawn_rollouts += group.request.group_size
        if pushback is not None:
            member.hold(pushback)
            asyncio.get_running_loop().call_later(pushback, self._dispatch)
        elif member.up:
            if not member.suspect:
                LOG.info("sampler %s lost the group %s, and perhaps others: %s", member.target, group, reason)
            member.suspect = True
        if len(group.bad_replies) >= MAX_BAD_REPLIES or group.losses >= MAX_LOSSES:
            self._fail(
                RunError(f"the group {group} could not be sampled in {group.attempts} calls; {member.target}: {reason}")
            )
            return
        self._queue.appendleft(group)

    async def _watch_all(self) -> None:
        """Reads the list of endpoints; says when every one is gone, and ends the run when none comes back."""
        for member in list(self._members):
            await member.answered_once.wait()
        while True:
            if self._file is not None:
                targets = await asyncio.to_thread(self._file.changed)
                if targets is not None:
                    self._enlist(targets)
            for member in [member for member in self._members if member.unlisted and not member.tasks]:
                await self._forget(member)
            serves = any(self._serves(member) for member in self._members)
            gone = all(not member.up or member.failing or member.leaving for member in self._members)
            if error := self._absence.check(self._members, serves=serves, gone=gone):
                self._fail(error)
                return
            await asyncio.sleep(min(WATCH_S, self._service.wait_s / 4 + 0.01))

    def _serves(self, member: Member) -> bool:
        """Whether it draws, or will once there are weights."""
        if member.leaving:
            return bool(member.tasks)
        return member.weights is not None or (self._parcel is None and member.up)


class Absence:
    """Of all endpoints; `since` is when (`time.monotonic`) the last one went, None as long as there is one."""

    def __init__(self, service: ServiceConfig):
        self.since: float | None = None
        self._service = service
        self._reminded = 0.0
        self._served = False

    def check(self, members: Sequence[Member], *, serves: bool, gone: bool) -> InputError | RunError | None:
        """What ends the run, if it has waited for too long for one of the listed `members`.

        One of them `serves` if it draws; they are `gone` if none will without help.
        """
        now = time.monotonic()
        if serves:
            self._served = True
            if self.since is not None and self._reminded >= self.since:
                LOG.info("a sampler is back after %.0f s", now - self.since)
            self.since = None
        elif gone:
            if self.since is None:
                self.since, self._reminded = now, now - REMIND_S + PATIENCE_S
            unmended = now - self.since >= min(PATIENCE_S, self._service.wait_s)
            if unmended and not self._served and members and all(untrusted(member.error) for member in members):
                reasons = "; ".join(f"{member.target} {member.error}" for member in members)
                return InputError(f"no sampler can be used: {reasons}. Then run the same command again")
            left = self.since + self._service.wait_s - now
            if left <= 0:
                waited = f"The run gives up after {self._service.wait_s:.0f} s"
                return RunError(self._lament(members, now, waited))
            if now - self._reminded >= REMIND_S:
                LOG.error("%s", self._lament(members, now, f"The run waits and gives up in {left:.0f} s"))
                self._reminded = now
        return None

    def _lament(self, members: Sequence[Member], now: float, outlook: str) -> str:
        """Which endpoints are gone, since when and why."""
        service = self._service
        listed = "; ".join(
            f"{member.target} (for {now - member.down_since:.0f} s) {member.error}" for member in members
        )
        field = "endpoints_file" if service.endpoints_file else "endpoints"
        remedy = f"start the servers, or correct {getattr(CONFIG.service, field)}"
        if "certificate" not in listed:  # else it has been said what is wrong with it
            remedy += f"; servers with TLS need {CONFIG.service.ca_file}, those with mutual "
            remedy += "TLS cert_file and key_file too"
        listed = listed or f"{service.endpoints_file} lists none"
        return f"no sampler is left: {listed}. {outlook} ({CONFIG.service.wait_s}): {remedy}"


def _pushback_s(error: BaseException) -> float | None:
    """When a full server asks to come again."""
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    try:
        seconds = int(dict(error.trailing_metadata() or ())[PUSHBACK]) / 1000
        return min(max(seconds, LEAST_PUSHBACK_S), MAX_RETRY_S)
    except (KeyError, ValueError, OverflowError):
        return None


class BadReplyError(Exception):
    """A server sent what was not asked for."""


@dataclasses.dataclass(eq=False)
class PendingGroup:
    """A group on its way."""

    request: SampleRequest
    lane: str  # where it is delivered
    number: int  # tells groups of one fleet apart
    attempts: int = 0  # calls that were made for it
    losses: int = 0  # of those, how many were lost on a server that lived on
    bad_replies: list[Member] = dataclasses.field(default_factory=list)  # and who brought what was not asked for
    finished: dict[int, Completion] = dataclasses.field(default_factory=dict)  # rollouts of the present call, by index

    def __str__(self) -> str:
        return f"of problem {self.request.problem_id!r}, step {self.request.step}, {self.lane}"

    def begin(self) -> None:
        """Another call is made for it."""
        self.attempts += 1
        self.finished.clear()

    def keep(
        self,
        message: pb.Completion,
        *,
        checked: Callable[[pb.Completion, SampleRequest], Completion],
        version: int | None,
        newest: int,
        one_version: bool,
    ) -> None:
        """Keeps one finished rollout, as `checked` finds it.

        Its tokens may have the `version` alone, or where that is None any up to the `newest` that there is; with
        `one_version` all have the same.

        Raises:
          BadReplyError: it is not what was asked for.
        """
        try:
            completion = checked(message, self.request)
        except ValueError as error:
            raise BadReplyError(f"rollout {message.index}: {error}") from error
        if message.index in self.finished:
            raise BadReplyError(f"rollout {message.index} came twice")
        versions = [span.version for span in message.spans]
        if version is not None and versions != [version]:
            raise BadReplyError(f"rollout {message.index} has the versions {versions}, not {version}")
        if one_version and len(versions) != 1:
            raise BadReplyError(f"rollout {message.index} mixes the versions {versions}")
        if versions != sorted(versions) or versions[0] < 0 or versions[-1] > newest:
            raise BadReplyError(f"rollout {message.index} has the versions {versions}; the newest is {newest}")
        self.finished[message.index] = completion
