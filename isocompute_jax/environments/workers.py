"""Worker processes that play environments of plain functions: what hangs is killed, what it held is made again.

A rollout is played in one process, which its name chooses. Each process plays one turn at a time: environments that
wait for others (`async def`) share an event loop instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import zlib
from collections.abc import Collection, Mapping
from typing import Any

from isocompute_jax.environments.episodes import Episodes, LostStateError, Play, at_once
from isocompute_jax.environments.protocol import Step
from isocompute_jax.environments.registry import get_kind
from isocompute_jax.records.errors import RunError
from isocompute_jax.tasks.graders.protocol import Failure
from isocompute_jax.tasks.grading import pool


class EpisodeWorkers:
    """So many processes, each started when it is needed; made and used on one event loop.

    Args:
      name, options: of the environments.
      size: processes.
      deadline_s: longest time of a step.
      environment: names of the environment variables that they are given beside `pool.NEEDED`.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], size: int, deadline_s: float, *, environment: Collection[str] = ()
    ):
        self._kind = name, json.dumps(dict(options))
        self._deadline_s = deadline_s
        self._environment = environment
        self._busy = [asyncio.Lock() for _ in range(size)]
        self._workers: list[pool.WorkerProcess | None] = [None] * size

    async def play(self, asked: Play) -> Step | Failure:
        """What the environment answers.

        Raises:
          RunError: no process can be started, or it cannot make the environment.
        """
        place = zlib.crc32(asked.rollout.encode()) % len(self._workers)
        async with self._busy[place]:
            worker = self._workers[place]
            if worker is None:
                worker = self._workers[place] = await self._start()
            request = {"play": {**vars(asked), "turns": list(asked.turns)}}
            try:
                answer = await worker.ask(request, self._deadline_s)
            except BaseException as error:
                self._workers[place] = None
                if isinstance(error, TimeoutError):
                    await worker.kill()
                    return Failure("timed out", f"no answer within {self._deadline_s:g} s; its process was killed")
                if isinstance(error, EOFError):
                    return Failure("died", f"its process ended with {await worker.ending()}")
                await worker.kill()
                raise
        if "fatal" in answer:
            raise RunError(f"environment {self._kind[0]}: {answer['fatal']}")
        return Failure(*answer["failure"]) if "failure" in answer else Step(**answer["step"])

    async def end(self, rollout: str) -> None:
        """Closes the environment of a rollout."""
        place = zlib.crc32(rollout.encode()) % len(self._workers)
        async with self._busy[place]:
            worker = self._workers[place]
            if worker is None:
                return
            try:
                await worker.ask({"end": rollout}, self._deadline_s)
            except (TimeoutError, EOFError):
                self._workers[place] = None
                await worker.kill()

    async def close(self) -> None:
        """Ends the processes."""
        await asyncio.gather(*(worker.kill() for worker in self._workers if worker is not None))

    async def _start(self) -> pool.WorkerProcess:
        worker = await pool.WorkerProcess.start(self._environment, __name__)
        await worker.must({"kind": self._kind}, f"a worker process cannot make the environment {self._kind[0]}")
        return worker


# --- in the worker process


def main(parent: int) -> None:
    """Plays what it is asked to."""
    episodes: list[Episodes] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        """`step`, an environment's answer; or `failure` or `fatal`, as in `pool.answer`."""
        try:
            if "kind" in request:
                name, options = request["kind"]
                episodes[:] = [Episodes(get_kind(name, json.loads(options)))]
                return {}
            if "end" in request:
                at_once(episodes[0].end(request["end"]))
                return {}
            return {"step": dataclasses.asdict(at_once(episodes[0].play(Play(**request["play"]))))}
        except LostStateError as error:
            return {"failure": ["died", str(error), ""]}
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return pool.failed(error)

    pool.serve(parent, answer)
