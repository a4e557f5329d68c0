"""Teams that are threads of one process, linked by real sockets."""

import concurrent.futures
import socket
import time
from collections.abc import Sequence

from isocompute_jax.distributed import link
from isocompute_jax.distributed.link import Codec
from isocompute_jax.distributed.team import Team

SOON = 10.0


class Company:
    """Teams of `count` processes, each in a thread of its own; `ended` is what ended each of them.

    `records` are dataclasses that travel between them.
    """

    def __init__(self, count: int, stall_s: float = 60.0, records: Sequence[type] = ()):
        self.ended: dict[int, tuple[str, int]] = {}
        self.pairs = [_pair() for _ in range(count - 1)]
        names = [f"process {i}" for i in range(count)]
        codec = Codec(records)
        self.links = [
            (link.Link(a, codec, names[i + 1], stall_s), link.Link(b, codec, names[0], stall_s))
            for i, (a, b) in enumerate(self.pairs)
        ]
        self.teams = [
            Team(
                0,
                names,
                {i + 1: pair[0] for i, pair in enumerate(self.links)},
                codec,
                stall_s=stall_s,
                end=self._end(0),
            )
        ]
        for i, pair in enumerate(self.links, 1):
            self.teams.append(Team(i, names, {0: pair[1]}, codec, stall_s=stall_s, end=self._end(i)))
        self.pool = concurrent.futures.ThreadPoolExecutor(count)

    def _end(self, index):
        def end(reason, code):
            self.ended[index] = reason, code

        return end

    def all(self, do):
        """What `do` of each team gives, or raises."""
        futures = [self.pool.submit(do, each) for each in self.teams]
        return [future.exception(SOON) or future.result() for future in futures]

    def wait_ended(self, *indices):
        deadline = time.monotonic() + SOON
        while not set(indices) <= self.ended.keys():
            assert time.monotonic() < deadline, self.ended
            time.sleep(0.01)

    def close(self):
        for each in self.teams:
            each.leave()
            for votes in each._votes.values():  # who still waits for one that never comes would keep this process
                votes.put(None)
            each._values.put(("value", {"value": None}))
        self.pool.shutdown(wait=False)


def _pair():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        return socket.create_connection(listener.getsockname()), listener.accept()[0]
