"""WorkerProcess processes that grade: each call has a deadline, and what hangs is killed and replaced.

Not multiprocessing, nor a pool on top of it (pebble): its processes import the program's main module again, and with
it whatever that imports, JAX say; and one that hangs outlives a parent that was killed. Here a worker is a program of
its own (`main`), in a session of its own, that the kernel kills with its parent. The pool lives on an event loop.

Messages are a length of four bytes, then so many bytes: pickled requests in, JSON out, because what graders make of a
model's text is not to be unpickled. The first request says where modules are found. A grader that prints, prints to
standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import pickle
import re
import signal
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import IO, Any

from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import WORKER, Failure, Grade, Grader, InvalidRewardError

START_S = 120.0
"""Longest time in which a process may start, and import what a grader needs."""
HEADER = struct.Struct("!I")
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LONGEST_MESSAGE = 4000
"""Characters of a traceback that travel."""

NEEDED = re.compile(
    r"PATH|PWD|TERM|HOME|USER|LOGNAME|SHELL|LANG(UAGE)?|LC_\w+|TZ|TMPDIR|TEMP|TMP|HOSTNAME|PYTHON\w*|VIRTUAL_ENV|CONDA_PREFIX"
    r"|LD_LIBRARY_PATH|DYLD_\w+|XDG_\w+|(OMP|MKL|OPENBLAS|NUMEXPR|BLIS|VECLIB)_\w+|(CUDA|NVIDIA)_VISIBLE_DEVICES"
    r"|CUDA_HOME|JAX_PLATFORMS|TOKENIZERS_PARALLELISM|(HF|TRANSFORMERS)_(HOME|CACHE|HUB_CACHE|HUB_OFFLINE|OFFLINE)"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|NO_PROXY|no_proxy|SystemRoot"
)
"""Environment variables that programs need, and that hold no secrets."""


MOST_WORKERS = 32


def process_count(wanted: int) -> int:
    """So many worker processes; for 0 half the cores, at most MOST_WORKERS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return wanted or max(1, min(MOST_WORKERS, cores // 2))


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
        self._idle: list[WorkerProcess] = []

    async def warm(self, names: Iterable[str]) -> None:
        """Starts every worker, and has it import the named graders."""
        names = list(names)
        await asyncio.gather(*(self._warm_one(names) for _ in range(self._size)))

    async def _warm_one(self, names: list[str]) -> None:
        async with self._worker() as one:
            for name in names:
                await one.load(name)

    async def grade(self, grader: Grader, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade] | Failure:
        """The grades of texts, in one call.

        Raises:
          RunError: no process can be started, or it cannot import the grader, or the grader cannot work.
        """
        async with self._worker() as one:
            await one.load(grader.name)
            request = {"name": grader.name, "problems": list(problems), "texts": list(texts)}
            try:
                answer = await one.ask(request, self._deadline_s)
            except TimeoutError:
                return Failure("timed out", f"no answer within {self._deadline_s:g} s; its process was killed")
            except EOFError:
                return Failure("died", f"its process ended with {await one.ending()}")
        if "fatal" in answer:
            raise RunError(f"reward {grader.name}: {answer['fatal']}")
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
            one = self._idle.pop() if self._idle else await WorkerProcess.start(self._environment)
            try:
                yield one
            except BaseException:
                await one.kill()
                raise
            if one.lost:
                await one.kill()
            else:
                self._idle.append(one)


class WorkerProcess:
    """One process and its pipes: that of graders, or of another program which answers requests by `serve`."""

    def __init__(self, process: asyncio.subprocess.Process, names: Collection[str]):
        assert process.stdin is not None and process.stdout is not None
        self.lost = False
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._loaded: set[str] = set()
        self._names = names

    @classmethod
    async def start(cls, names: Collection[str], module: str = __name__) -> WorkerProcess:
        """Starts the `main` of a module in a process that is given the variables of these names too.

        Raises:
          RunError: it does not start.
        """
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                f"from {module} import main; main({os.getpid()})",
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
            await one.must({"path": list(sys.path)}, "a worker process does not start")
        except BaseException:
            await one.kill()
            raise
        return one

    async def load(self, name: str) -> None:
        """Has it import a grader, once; that takes no time of a call's deadline."""
        if name not in self._loaded:
            await self.must({"load": name}, f"a worker process cannot load {name}")
            self._loaded.add(name)

    async def must(self, request: dict[str, Any], what: str) -> None:
        """Sends a request without which nothing works; where it fails, `what` begins the RunError."""
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
        self._stdin.write(HEADER.pack(len(body)) + body)
        await self._stdin.drain()
        (length,) = HEADER.unpack(await self._stdout.readexactly(HEADER.size))
        return json.loads(await self._stdout.readexactly(length))

    async def ending(self) -> str:
        """How the process ended, in words; one that still runs after a second is killed."""
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
    return f" (workers are not given {named}: name it in {CONFIG.reward.environment})" if named else ""


def _search_path() -> str:
    """Where this process finds modules, for one that it starts."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


# --- in the worker process


def main(parent: int) -> None:
    """Grades what it is asked to."""
    serve(parent, answer)


def serve(parent: int, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Serves requests. SIGKILL reaches this process when the thread that started it ends, however that is."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        sys.exit("the process that started this one is gone")
    with open(os.dup(0), "rb") as requests, open(os.dup(1), "wb") as answers:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        while (request := _read(requests)) is not None:
            if "path" in request:
                sys.path[:] = request["path"]
                _write(answers, {})
            else:
                _write(answers, answer(request))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What a request is answered with.

    `grades`, a [reward, metrics] for each text; or `failure`, [kind, message, where]; or `fatal`, why nothing can be
    graded.
    """
    try:
        # Late, because the request before said where the user's modules are.
        from isocompute_jax.tasks.graders.registry import get_grader

        if "load" in request:
            get_grader(request["load"])
            return {}
        grades: Any = get_grader(request["name"]).grade_batch(request["problems"], request["texts"])
        return {"grades": [[grade.reward, dict(grade.metrics)] for grade in grades]}
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return failed(error)


def failed(error: BaseException) -> dict[str, Any]:
    """What a request is answered with where `error` ended it."""
    if isinstance(error, InvalidRewardError):
        return {"failure": ["invalid", str(error)]}
    if isinstance(error, InputError | RunError):
        return {"fatal": str(error)}
    failure = Failure.raised(error)
    return {"failure": ["raised", failure.message[-LONGEST_MESSAGE:], failure.where]}


def _read(file: IO[bytes]) -> Any:
    head = file.read(HEADER.size)
    return pickle.loads(file.read(HEADER.unpack(head)[0])) if len(head) == HEADER.size else None


def _write(file: IO[bytes], message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    file.write(HEADER.pack(len(body)) + body)
    file.flush()
