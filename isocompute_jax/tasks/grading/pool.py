"""Worker processes that grade: each call has a deadline, and what hangs is killed and replaced.

Not multiprocessing, nor a pool on top of it (pebble): its processes import the program's main module again, and with
it whatever that imports, JAX say; and one that hangs outlives a parent that was killed. Here a worker is a program of
its own (`worker`), in a session of its own, that the kernel kills with its parent. The pool lives on an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import re
import signal
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from isocompute_jax.records.errors import RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import WORKER, Grade
from isocompute_jax.tasks.grading import worker
from isocompute_jax.tasks.grading.failures import Failure

START_S = 120.0
"""Longest time in which a process may start, and import what a grader needs."""


NEEDED = re.compile(
    r"PATH|PWD|TERM|HOME|USER|LOGNAME|SHELL|LANG(UAGE)?|LC_\w+|TZ|TMPDIR|TEMP|TMP|HOSTNAME|PYTHON\w*|VIRTUAL_ENV|CONDA_PREFIX"
    r"|LD_LIBRARY_PATH|DYLD_\w+|XDG_\w+|(OMP|MKL|OPENBLAS|NUMEXPR|BLIS|VECLIB)_\w+|(CUDA|NVIDIA)_VISIBLE_DEVICES"
    r"|CUDA_HOME|JAX_PLATFORMS|TOKENIZERS_PARALLELISM|(HF|TRANSFORMERS)_(HOME|CACHE|HUB_CACHE|HUB_OFFLINE|OFFLINE)"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|NO_PROXY|no_proxy|SystemRoot"
)
"""Environment variables that programs need, and that hold no secrets."""


class WorkerPool:
    """At most `size` worker processes, started when they are needed; made and used on one event loop.

    Args:
      size: processes at a time.
      deadline_s: longest time of a call.
      environment: names of the variables that they are given beside `NEEDED`.
    """

    def __init__(self, size: int, deadline_s: float, *, environment: Collection[str] = ()):
        self._size = size
        self._deadline_s = deadline_s
        self._environment = environment
        self._free = asyncio.Semaphore(size)
        self._idle: list[_Worker] = []

    async def warm(self, names: Iterable[str]) -> None:
        """Starts every worker, and has it import the named graders."""
        names = list(names)
        await asyncio.gather(*(self._warm_one(names) for _ in range(self._size)))

    async def _warm_one(self, names: list[str]) -> None:
        async with self._worker() as one:
            for name in names:
                await one.load(name)

    async def grade(self, name: str, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade] | Failure:
        """The grades of texts by the grader `name`, in one call.

        Raises:
          RunError: no process can be started, or it cannot import the grader, or the grader cannot work.
        """
        async with self._worker() as one:
            await one.load(name)
            request = {"name": name, "problems": list(problems), "texts": list(texts)}
            try:
                answer = await one.ask(request, self._deadline_s)
            except TimeoutError:
                return Failure("hung", f"no answer within {self._deadline_s:g} s; its process was killed")
            except EOFError:
                return Failure("died", f"its process ended with {await one.ending()}")
        if "fatal" in answer:
            raise RunError(f"reward {name}: {answer['fatal']}")
        if "failure" in answer:
            return Failure(*answer["failure"])
        return [Grade(reward, metrics) for reward, metrics in answer["grades"]]

    async def close(self) -> None:
        """Ends the idle workers; those that work are ended by who cancels their calls."""
        await asyncio.gather(*(one.kill() for one in self._idle))
        self._idle.clear()

    @contextlib.asynccontextmanager
    async def _worker(self):
        """A worker of one's own, kept for others unless it was lost."""
        async with self._free:
            one = self._idle.pop() if self._idle else await _Worker.start(self._environment)
            try:
                yield one
            except BaseException:
                await one.kill()
                raise
            if one.lost:
                await one.kill()
            else:
                self._idle.append(one)


class _Worker:
    """One process and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process, names: Collection[str]):
        assert process.stdin is not None and process.stdout is not None
        self.lost = False
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._loaded: set[str] = set()
        self._names = names

    @classmethod
    async def start(cls, names: Collection[str]) -> _Worker:
        """Starts a process that is given the variables of these names too. Raises RunError where that fails."""
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                f"from {worker.__name__} import main; main({os.getpid()})",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # a terminal's Ctrl-C is the parent's business
                env={**environment(names), WORKER: "1", "PYTHONPATH": _search_path()},
            )
        )
        try:
            one = cls(await asyncio.shield(starting), names)
        except asyncio.CancelledError:  # a process that is half started could not be waited for
            await cls(await starting, names).kill()
            raise
        except OSError as error:
            raise RunError(f"a worker process does not start: {error.strerror}") from error
        try:
            await one._must({"path": list(sys.path)}, "a worker process does not start")
        except BaseException:
            await one.kill()
            raise
        return one

    async def load(self, name: str) -> None:
        """Has it import a grader, once; that takes no time of a call's deadline."""
        if name not in self._loaded:
            await self._must({"load": name}, f"a worker process cannot load {name}")
            self._loaded.add(name)

    async def _must(self, request: dict[str, Any], what: str) -> None:
        try:
            answer = await self.ask(request, START_S)
        except (TimeoutError, EOFError) as error:
            how = f"no answer within {START_S:g} s" if isinstance(error, TimeoutError) else await self.ending()
            await self.kill()
            raise RunError(f"{what}: {how}") from None
        if answer.keys() & {"failure", "fatal"}:
            await self.kill()
            why = answer.get("fatal") or answer["failure"][1]
            raise RunError(f"{what}: {why}{withheld(why, self._names)}")

    async def ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Sends a request and waits for the answer.

        Raises:
          TimeoutError: it took too long.
          EOFError: the process has ended, or sends what is no answer.
        """
        try:
            return await asyncio.wait_for(self._ask(request), deadline_s)
        except TimeoutError:
            self.lost = True
            raise TimeoutError from None
        except (OSError, asyncio.IncompleteReadError, ValueError):
            self.lost = True
            raise EOFError from None

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        body = pickle.dumps(request)
        self._stdin.write(worker.HEADER.pack(len(body)) + body)
        await self._stdin.drain()
        (length,) = worker.HEADER.unpack(await self._stdout.readexactly(worker.HEADER.size))
        return json.loads(await self._stdout.readexactly(length))

    async def ending(self) -> str:
        """How the process ended; it is made to."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 1.0)
        await self.kill()
        code = self._process.returncode or 0
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def kill(self) -> None:
        """Ends it and whatever it started, at once."""
        self.lost = True
        self._stdin.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # session leader: its pid is the group's
        await self._process.wait()
        # asyncio keeps the pipe of a dead process open until it is read to its end.
        with contextlib.suppress(OSError, ValueError):
            await asyncio.wait_for(self._stdout.read(), 1.0)


def environment(names: Collection[str] = ()) -> dict[str, str]:
    """What workers see of this process's environment: what programs need to run, and what the user names.

    Not all but what looks like a secret: DATABASE_URL and many others do not. A variable that is missed shows when
    graders are tried, before the run begins; one that got out is never seen.
    """
    return {name: value for name, value in os.environ.items() if name in names or NEEDED.fullmatch(name)}


def withheld(message: str, names: Collection[str]) -> str:
    """A hint, where a message names a variable that this process has and workers that get `names` have not."""
    absent = os.environ.keys() - environment(names).keys()
    named = next(
        (name for name in sorted(absent) if len(name) > 4 and re.search(rf"\b{re.escape(name)}\b", message)), ""
    )
    return f" (workers are not given {named}: name it in config.reward.environment)" if named else ""


def _search_path() -> str:
    """Where this process finds modules, for one that it starts."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)
