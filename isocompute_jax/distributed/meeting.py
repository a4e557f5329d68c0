"""How the processes of a run find each other, and whether they are of one run: before JAX knows of more than one.

Process 0 listens at the coordinator's address; the others come, in any order, and say what they are. Once all are
there, process 0 compares them. Then it listens at the port above, too, and each of them tries it: JAX's coordination
service will be there, and would abort all processes if it cannot be. So they are let in, or all sent away with the
reason.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import logging
import os
import pathlib
import platform
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isocompute_jax.distributed.environment import Place
from isocompute_jax.distributed.link import ClosedError, Codec, Link
from isocompute_jax.distributed.team import Team
from isocompute_jax.records.errors import InputError, RunError

LOG = logging.getLogger(__name__)

HELLO = "isocompute_jax"
HELLO_S = 10.0
RETRY_S = 0.2
PATIENCE_S = 10.0
"""Who is waited for that long is spoken of, and then every `REMIND_S`."""
REMIND_S = 30.0
MOST_DIFFERENCES = 3

WAITS = "process 0 is not reached at --coordinator=%s yet (%s), for %.0f s; given up in %.0f s (--start_s)"


@dataclasses.dataclass(frozen=True)
class About:
    """What a process says of itself."""

    index: int  # its number
    count: int  # how many processes it was told of
    name: str  # what messages call it
    # What must be the same in all: for each kind (`code`, `version`, `config`) the names of things and what they are.
    facts: Mapping[str, Mapping[str, Any]]


def about(place: Place, facts: Mapping[str, Mapping[str, Any]]) -> About:
    """What this process says of itself."""
    name = f"process {place.index} ({socket.gethostname()}, pid {os.getpid()})"
    code = {"python": platform.python_version(), "isocompute_jax's source": source_digest()}
    return About(place.index, place.count, name, {"code": code, **facts})


def source_digest() -> str:
    """Of every Python file of this package: a checkout's version number says little."""
    root, digest = pathlib.Path(__file__).parent.parent, hashlib.blake2b(digest_size=6)
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def meet(place: Place, mine: About, codec: Codec, *, start_s: float, stall_s: float) -> Team:
    """The team of all processes, once they are there and agree; the others are waited for `start_s` at most.

    Raises:
      InputError: they are not of one run, or the address or the port above it cannot be listened at; in all that
        have come.
      RunError: some did not come, or process 0 cannot be reached, at both ports.
    """
    join = _let_in if place.index else _received
    return join(place, mine, codec, start_s=start_s, stall_s=stall_s)


# --- process 0


def _received(place: Place, mine: About, codec: Codec, *, start_s: float, stall_s: float) -> Team:
    here: dict[int, tuple[About, Link]] = {}
    listener = _listener(place.coordinator)
    try:
        _wait_for_all(listener, place, mine, here, start_s)
        for each, _ in here.values():
            _check_same(mine, each)
        names = [mine.name, *(here[i][0].name for i in range(1, place.count))]
        _try_port_above(place.coordinator, names, [here[i][1] for i in range(1, place.count)], start_s)
    except (InputError, RunError) as error:
        for _, link in here.values():
            _reply(link, {"refused": type(error).__name__, "text": str(error)})
            link.close()
        raise
    finally:
        listener.close()
    for _, link in here.values():
        _reply(link, {"names": names})
    links = {i: link.become(theirs.name, codec, stall_s) for i, (theirs, link) in here.items()}
    return Team(0, names, links, codec, stall_s=stall_s, source=place.source)


def _wait_for_all(
    listener: socket.socket, place: Place, mine: About, here: dict[int, tuple[About, Link]], start_s: float
) -> None:
    """Fills `here` with all other processes."""
    start = time.monotonic()
    reminded = start + PATIENCE_S - REMIND_S
    while len(here) < place.count - 1 or _left(here):
        try:
            connection, (address, *_) = listener.accept()
        except TimeoutError:
            now = time.monotonic()
            missing = _listed(i for i in range(1, place.count) if i not in here)
            if now - start > start_s:
                raise RunError(
                    f"{missing} of {place.count} did not come to {place.coordinator} within {start_s:.0f} s "
                    "(--start_s): are they started, with this --coordinator and with each --process_index once, and "
                    "let in by firewalls?"
                ) from None
            if now - reminded > REMIND_S:
                LOG.info("waiting at %s for %s of %d", place.coordinator, missing, place.count)
                reminded = now
            continue
        link = Link(connection, Codec([About]), address, HELLO_S)
        theirs = _hello(link)
        if theirs is None:
            LOG.warning("%s connected to %s and is no process of a run", address, place.coordinator)
            link.close()
        elif theirs.index in here.keys() - _left(here):
            here[-1] = (theirs, link)  # it is to hear of it, too
            raise InputError(
                f"two processes say that they are number {theirs.index}: {here[theirs.index][0].name} and "
                f"{theirs.name}; give each a --process_index of its own"
            )
        else:
            here[theirs.index] = (theirs, link)
            _check_count(mine, theirs)


def _listener(coordinator: str) -> socket.socket:
    host, port = split(coordinator)
    for bound in (host, ""):  # behind a service's name, no interface has the address
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((bound, port))
        except OSError as error:
            listener.close()
            if bound and error.errno != errno.EADDRINUSE:
                continue
            raise InputError(
                f"--coordinator={coordinator}: process 0 cannot listen there: {error.strerror}. Another run may have "
                "it, or another process of this one that was given --process_index=0 too: choose another port (the one "
                "above it is used too), or give each process an index of its own"
            ) from error
        listener.listen(128)
        listener.settimeout(RETRY_S)
        return listener
    raise AssertionError


def _try_port_above(coordinator: str, names: Sequence[str], links: Sequence[Link], start_s: float) -> None:
    """Has the others connect to the port above; raises InputError where JAX could not listen there, or be reached."""
    port = split(coordinator)[1] + 1
    with _listener_above(coordinator, port, len(links)):
        for link in links:
            _reply(link, {"try": "the port above"})
        for name, link in zip(names[1:], links, strict=True):
            try:
                why = link.receive()[1] if link.readable(start_s) else "it does not answer"
            except ClosedError as error:
                raise RunError(f"{name} went away again while all met: {error}. Start all again") from error
            if why:
                raise InputError(
                    f"{name} reaches process 0 at --coordinator={coordinator}, and not at the port above it, {port}, "
                    f"where JAX's coordination service listens: {why}. Let both ports through firewalls"
                )


def _listener_above(coordinator: str, port: int, processes: int) -> socket.socket:
    """What listens where, and as, JAX's service will: at every address, of both families where there are both."""
    for family in (socket.AF_INET6, socket.AF_INET):
        both = family == socket.AF_INET6
        if both and not socket.has_dualstack_ipv6():
            continue
        try:
            return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=max(128, processes))
        except OSError as error:
            if both and error.errno != errno.EADDRINUSE:
                continue
            raise InputError(
                f"--coordinator={coordinator}: JAX's coordination service of process 0 cannot listen at the port above "
                f"it, {port}: {os.strerror(error.errno or 0)}. Another program has it (`ss -ltnp 'sport = :{port}'` on "
                "that host says which): end that, or choose another port for --coordinator"
            ) from error
    raise AssertionError


def _hello(link: Link) -> About | None:
    """What somebody says who has connected; None for who is none of ours."""
    try:
        topic, theirs = link.receive()
    except ClosedError:
        return None
    return theirs if topic == HELLO and isinstance(theirs, About) else None


def _left(here: dict[int, tuple[About, Link]]) -> set[int]:
    """Takes out those that went away again, as killed ones do: nothing else is to be read before they are let in."""
    gone = {index for index, (_, link) in here.items() if link.readable(0.0)}
    for index in gone:
        here.pop(index)[1].close()
    return gone


def _check_count(mine: About, theirs: About) -> None:
    if theirs.count != mine.count or not 0 < theirs.index < mine.count:
        raise InputError(
            f"{theirs.name} was told of {theirs.count} processes, {mine.name} of {mine.count}: give all the same "
            "--process_count"
        )


def _check_same(mine: About, theirs: About) -> None:
    """Raises InputError where two processes are not of one run."""
    for kind, ours in mine.facts.items():
        others = theirs.facts.get(kind, {})
        different = sorted(name for name in ours.keys() | others.keys() if ours.get(name) != others.get(name))
        if different:
            listed = "; ".join(
                f"{name} is {others.get(name)!r} there, and {ours.get(name)!r} in process 0"
                for name in different[:MOST_DIFFERENCES]
            )
            more = f"; and {len(different) - MOST_DIFFERENCES} more" if len(different) > MOST_DIFFERENCES else ""
            remedy = (
                "start all with the same flags" if kind == "config" else "install the same on every host, and try again"
            )
            raise InputError(f"{theirs.name} is of another {kind}: {listed}{more}; {remedy}")


def _reply(link: Link, value: dict[str, Any]) -> None:
    try:
        link.send("reply", value)
    except ClosedError:
        LOG.warning("%s went away again", link.name)


def _listed(numbers: Iterable[int]) -> str:
    names = [str(number) for number in numbers]
    return f"process{'es' if len(names) > 1 else ''} {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"


# --- the others


def _let_in(place: Place, mine: About, codec: Codec, *, start_s: float, stall_s: float) -> Team:
    start = time.monotonic()
    deadline, reminded = start + start_s, start + PATIENCE_S - REMIND_S
    why = "it does not answer"
    while (now := time.monotonic()) < deadline:
        if now - reminded > REMIND_S:
            LOG.warning(WAITS, place.coordinator, why, now - start, deadline - now)
            reminded = now
        try:
            connection = socket.create_connection(split(place.coordinator), timeout=HELLO_S)
        except OSError as error:
            why = error.strerror or str(error)
            time.sleep(RETRY_S)
            continue
        link = Link(connection, Codec([About]), "process 0", HELLO_S)
        try:
            link.send(HELLO, mine)
            reply = _awaited(link, deadline)
            if reply is not None and "try" in reply:
                link.send("tried", _unreached_above(place.coordinator))
                reply = _awaited(link, deadline)
        except ClosedError as error:  # it died, or was about to, and comes again
            link.close()
            why = str(error)
            time.sleep(RETRY_S)
            continue
        if reply is None:
            break
        if "refused" in reply:
            link.close()
            raise {"InputError": InputError}.get(reply["refused"], RunError)(reply["text"])
        names = reply["names"]
        links = {0: link.become(names[0], codec, stall_s)}
        return Team(place.index, names, links, codec, stall_s=stall_s, source=place.source)
    raise RunError(
        f"process 0 cannot be reached at --coordinator={place.coordinator} for {start_s:.0f} s (--start_s): {why}. Is "
        "it started, is the address right, and do firewalls let this port and the one above it through?"
    )


def _unreached_above(coordinator: str) -> str:
    """Why process 0 cannot be reached at the port above; empty when it can."""
    host, port = split(coordinator)
    try:
        socket.create_connection((host, port + 1), timeout=HELLO_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _awaited(link: Link, deadline: float) -> dict[str, Any] | None:
    """What process 0 answers; None if that takes too long, because others are missing."""
    while not link.readable(RETRY_S):
        if time.monotonic() > deadline + HELLO_S:  # process 0, which began to wait before, has a better message
            return None
    return link.receive()[1]


def split(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[address]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
