"""The processes of a run, as each of them sees the others.

Every process runs the same program, in which they meet at the same places in the same order (`broadcast`, `everywhere`,
`agree`). Process 0 leads: it alone draws rollouts and writes run files, and what it finds it tells the others. While
they wait for it they do what it asks of them (`call`), as a computation over the devices of all needs all of them.

A process that waits in a collective cannot be interrupted. So a process that has died, that is not heard of any more or
that the others wait for in vain ends all others from their threads, within `stall_s` and with its name; whoever started
them starts all again.

Who is waited for is told by counting: every process counts the places of the program that it comes to, each meeting
and each computation that all do together (`arrive`). Process 0 awaits whoever is behind it. The others await process 0
where they have arrived and it has not: not in a broadcast, which it may take long for, as for rollouts.

Two stalls show no difference between processes, and end nothing: one inside of a computation to which all have come
(docs/clusters.md names XLA's own time limit), and one of process 0 in what it alone does.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from isocompute_jax.distributed.link import ClosedError, Codec, Link
from isocompute_jax.records.errors import FAILED, InputError, Interrupted, RunError
from isocompute_jax.records.printing import say

T = TypeVar("T")
Handler = Callable[[int, Any], object]
"""Called with the sender and the value of a message, in a thread that must not wait."""

BEAT_S = 1.0
EARLY = 30
"""Times `stall_s` that one is awaited before the run is steady: models are read, from storage fast and slow."""
STOPPED_S = 5.0
"""A thread that slept so much longer than it meant to was stopped with its process: it has missed what others said."""
READ_S = 0.1
"""So long a last word is given to be read: of a connection that ends with something unread, all of it may be lost."""

ERRORS: dict[str, type[BaseException]] = {
    kind.__name__: kind for kind in (InputError, RunError, Interrupted, KeyboardInterrupt)
}
"""What one process raises for all, the more special kinds first."""


def end_process(reason: str, code: int) -> NoReturn:
    """Ends this process whatever its main thread waits for."""
    say(f"error: {reason}", file=sys.stderr, flush=True)
    os._exit(code)


class Team:
    """This process among the others; a team of one meets nobody.

    Args:
      index: this process.
      names: of all, by index.
      links: to the others: of process 0 to each of them, of each of them to process 0.
      codec: of the links.
      stall_s: longest silence of a process that lives, and longest time that others wait for one on its way
        (`EARLY` times as long before the run is `steady`).
      source: who said which process this is.
      end: ends this process.
    """

    def __init__(
        self,
        index: int,
        names: Sequence[str],
        links: Mapping[int, Link],
        codec: Codec,
        *,
        stall_s: float,
        source: str = "",
        end: Callable[[str, int], None] = end_process,
    ):
        self.index = index
        self.count = len(names)
        self.names = tuple(names)
        self.source = source
        self._links = dict(links)
        self._codec = codec
        self._stall_s = stall_s
        self._end = end
        self._handlers: dict[str, Handler] = {}
        self._early: list[tuple[str, int, Any]] = []
        self._handling = threading.Lock()
        self._calls: dict[str, Callable[..., object]] = {}
        self._values: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._votes: dict[int, queue.SimpleQueue[Any]] = {i: queue.SimpleQueue() for i in links}
        self._place = 0
        self._due = 0  # place that process 0 is to have come to as well, by now
        self._ahead_since: dict[int, tuple[int, float]] = {}
        self._steady = False
        self._shared: BaseException | None = None
        self._flag: Callable[[], bool] = lambda: False
        self._leaving = False
        self._ending = threading.Lock()
        for i, link in self._links.items():
            threading.Thread(target=self._listen, args=(i, link), name=f"process-{i}", daemon=True).start()
        if links:
            threading.Thread(target=self._beat, name="beat", daemon=True).start()

    @property
    def leads(self) -> bool:
        """Whether this is process 0."""
        return self.index == 0

    @property
    def name(self) -> str:
        """Of this process."""
        return self.names[self.index]

    # --- meeting

    def broadcast(self, make: Callable[[], T]) -> T:
        """What `make` gives in process 0, in every process; called there alone.

        Raises:
          InputError, RunError, Interrupted, KeyboardInterrupt: as `make` does, in every process.
        """
        if self.count == 1:
            return make()
        self._place += 1
        if not self.leads:
            return self._told()
        try:
            value = make()
        except tuple(ERRORS.values()) as error:
            self.send_all("value", _described(error))
            self._shared = error
            raise
        self.send_all("value", {"value": value})
        return value

    def everywhere(self, make: Callable[[], T]) -> T:
        """Calls `make` in every process, and returns what it gave here.

        Raises:
          InputError, RunError, Interrupted, KeyboardInterrupt: it did in one process, which is named; in all of them.
        """
        if self.count == 1:
            return make()
        self.arrive()
        value, failure = None, None
        try:
            value = make()
        except tuple(ERRORS.values()) as error:
            failure = error
        failures = self._gathered(None if failure is None else _described(failure))

        def judge() -> None:
            for i, described in enumerate(failures):
                if described is not None:
                    error = _raised(described)
                    raise error if i == 0 else type(error)(f"{self.names[i]}: {error}")

        self.broadcast(judge)
        return value  # pyright: ignore[reportReturnType]

    def agree(self, what: str, mine: Any) -> None:
        """Holds all processes to the same `mine`, bit for bit.

        Raises:
          RunError: one says something else than process 0, of a mapping the names in which they differ, or has come to
            more or fewer places; in all of them.
        """
        if self.count == 1:
            return
        self.arrive()
        gathered = self._gathered([mine, self._place])

        def judge() -> None:
            for i, values in enumerate(gathered):
                for about, theirs, ours in zip((what, "how far they are"), values, gathered[0], strict=True):
                    if theirs != ours:
                        this, that = _different(theirs, ours)
                        raise RunError(
                            f"{self.names[i]} disagrees with {self.names[0]} about {about}: {this!r}, not {that!r}. "
                            "They no longer compute the same run; the same command resumes from the last checkpoint"
                        )

        self.broadcast(judge)

    def arrive(self) -> None:
        """Says that this process has come to a computation that all do together, which is to begin at once.

        Every process calls it at the same places. Between the last meeting and such a place process 0 does nothing that
        it alone may take long for: where it does, the others `follow` first.
        """
        self._place += 1
        self._due = self._place

    def follow(self) -> None:
        """Waits for process 0, which may take long for what it alone does."""
        self.broadcast(lambda: None)

    def call(self, name: str, *arguments: Any) -> None:
        """Has every other process do what it `serves` under a name, as soon as it waits for process 0 (which calls)."""
        self.send_all("call", [name, *arguments])

    def serve(self, name: str, function: Callable[..., object]) -> None:
        """What a `call` of process 0 does here."""
        self._calls[name] = function

    def _gathered(self, mine: Any) -> list[Any]:
        """In process 0 what each process has sent it, by index; elsewhere nothing."""
        self._place += 1
        if not self.leads:
            self.send(0, "vote", mine)
            return []
        return [mine, *(self._votes[i].get() for i in range(1, self.count))]

    def _told(self) -> Any:
        """What process 0 broadcasts, and until then what it asks for."""
        while True:
            topic, value = self._values.get()
            if topic == "call":
                name, *arguments = value
                self._calls[name](*arguments)
            elif "value" in value:
                return value["value"]
            else:
                self._shared = _raised(value)
                raise self._shared

    def shares(self, error: BaseException) -> bool:
        """Whether every process has met an error, at the same place; what only one has met ends all others."""
        return self.count == 1 or error is self._shared

    # --- messages beside the meetings

    def on(self, topic: str, handler: Handler) -> None:
        """What becomes of messages of a topic of one's own, those that came already included."""
        with self._handling:
            self._handlers[topic] = handler
            early = [message for message in self._early if message[0] == topic]
            self._early = [message for message in self._early if message[0] != topic]
        for _, sender, value in early:
            handler(sender, value)

    def send(self, to: int, topic: str, value: Any) -> None:
        """Sends one to process `to`; a process that is gone ends this one anyhow: who listens to it sees its end."""
        with contextlib.suppress(ClosedError):
            self._links[to].send(topic, value)

    def send_all(self, topic: str, value: Any) -> None:
        """Sends one to all others that this process is linked to."""
        data = self._codec.encode([topic, value])
        for link in self._links.values():
            with contextlib.suppress(ClosedError):
                link.send_encoded(data)

    @property
    def flagged(self) -> bool:
        """Whether this process, or in process 0 any, has its flag up: its user wants the run to end."""
        return self._flag() or any(link.flag for link in self._links.values())

    def raise_flag_if(self, flag: Callable[[], bool]) -> None:
        """What the flag of this process is."""
        self._flag = flag

    def steady(self) -> None:
        """From here on the way from one place to the next is short: who is awaited for `stall_s` has stalled."""
        self._steady = True

    # --- the end

    def fail(self, reason: str, code: int = FAILED, *, tell: bool = False) -> None:
        """Ends every process of the run, this one last; another than process 0 has it `tell` the others, if it can."""
        with self._ending:  # for good: another thread that meets the same end waits here
            if self._leaving:
                return
            self._leaving = True
            if self.leads or tell:  # else it is process 0 that has been lost, or said this
                self.send_all("end", [reason, code])
                time.sleep(READ_S)
            self._end(reason, code)

    def leave(self, fate: str = "", code: int = FAILED) -> None:
        """Leaves the others: at the end of the run, or with the `fate` of this one ("failed: ..."), which ends them."""
        if not self._leaving:
            self._leaving = True
            self.send_all("end" if fate else "bye", [f"{self.name} {fate}", code])
            time.sleep(READ_S if fate else 0.0)
        for link in self._links.values():
            link.close()

    def _listen(self, sender: int, link: Link) -> None:
        """Reads what a process says, until it is gone."""
        try:
            while True:
                asked = time.monotonic()
                if link.readable(BEAT_S):
                    self._take(sender, *link.receive())
                elif time.monotonic() - asked > BEAT_S + STOPPED_S:
                    for each in self._links.values():
                        each.heard = time.monotonic()
                self._judge(sender, link)
        except ClosedError as error:
            if not self._leaving:
                silent = time.monotonic() - link.heard > self._stall_s / 2
                what = f"takes nothing any more ({error})" if silent else "has died"
                self.fail(f"{link.name} {what}: every process of the run ends. The same command resumes it")

    def _take(self, sender: int, topic: str, value: Any) -> None:
        """One message."""
        link = self._links[sender]
        if topic == "beat":
            link.place, link.flag = value
        elif topic in ("value", "call"):
            self._values.put((topic, value))
        elif topic == "vote":
            self._votes[sender].put(value)
        elif topic == "end":
            self.fail(*value)
        elif topic == "bye":
            self._leaving = True
        else:
            with self._handling:
                handler = self._handlers.get(topic)
                if handler is None:
                    self._early.append((topic, sender, value))
            if handler is not None:
                handler(sender, value)

    def _judge(self, sender: int, link: Link) -> None:
        """Ends the run if a process has stalled."""
        if self._leaving:
            return
        now = time.monotonic()
        if now - link.heard > self._stall_s:
            self.fail(
                f"{link.name} has not been heard of for {now - link.heard:.0f} s (--stall_s): every process of the run "
                "ends. The same command resumes it"
            )
        # Only who leads sees everybody, and it alone may take as long as it needs: the others wait for rollouts.
        behind = link.place < (self._place if self.leads else self._due)
        place, since = self._ahead_since.get(sender, (-1, now))
        if not behind or place != link.place:
            self._ahead_since[sender] = (link.place, now)
        elif now - since > self._stall_s * (1 if self._steady else EARLY):
            self.fail(
                f"{link.name} is awaited for {now - since:.0f} s (--stall_s): every process of the run ends. The same "
                "command resumes it",
                tell=True,
            )

    def _beat(self) -> None:
        """Says again and again that this process lives, and where it is."""
        while not self._leaving:
            self.send_all("beat", (self._place, self._flag()))
            time.sleep(BEAT_S)


def alone() -> Team:
    """The team of one process."""
    return Team(0, ["this process"], {}, Codec(), stall_s=0.0)


def _different(theirs: Any, ours: Any) -> tuple[Any, Any]:
    """Of two mappings with the same names, what is not the same; of anything else all."""
    if not (isinstance(theirs, Mapping) and isinstance(ours, Mapping) and theirs.keys() == ours.keys()):
        return theirs, ours
    names = [name for name in ours if theirs[name] != ours[name]]
    return {name: theirs[name] for name in names}, {name: ours[name] for name in names}


def _described(error: BaseException) -> dict[str, Any]:
    return {"error": next(name for name, kind in ERRORS.items() if isinstance(error, kind)), "text": str(error)}


def _raised(described: Mapping[str, Any]) -> BaseException:
    return ERRORS[described["error"]](*filter(None, [described["text"]]))
