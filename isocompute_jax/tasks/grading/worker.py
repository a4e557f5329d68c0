"""What a worker process runs: it grades what it is sent, until its standard input ends or its parent is gone.

Messages are a length of four bytes, then so many bytes: pickled requests in, JSON out, because what graders make of a
model's text is not to be unpickled. The first request says where modules are found. A grader that prints, prints to
standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import signal
import struct
import sys
from typing import IO, Any

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.tasks.grading.failures import told

HEADER = struct.Struct("!I")
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LONGEST_MESSAGE = 4000
"""Characters of a traceback that travel."""


def main(parent: int) -> None:
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
            _write(answers, answer(request))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What a request is answered with.

    `grades`, a [reward, metrics] for each text; or `failure`, [kind, message, where]; or `fatal`, why nothing can be
    graded.
    """
    try:
        if "path" in request:
            sys.path[:] = request["path"]
            return {}
        # Late, because the request before said where the user's modules are.
        from isocompute_jax.tasks.graders.function import InvalidRewardError, to_grade
        from isocompute_jax.tasks.graders.registry import get_grader

        if "load" in request:
            get_grader(request["load"])
            return {}
        grader: Any = get_grader(request["name"])
        problems, texts = request["problems"], request["texts"]
        try:
            if grader.runs == "batch":
                grades = grader.grade_batch(problems, texts)
            else:
                grades = [
                    to_grade(grader.grade(p, text), request["name"]) for p, text in zip(problems, texts, strict=True)
                ]
        except InvalidRewardError as error:
            return {"failure": ["invalid", str(error)]}
        return {"grades": [[grade.reward, dict(grade.metrics)] for grade in grades]}
    except (InputError, RunError) as error:
        return {"fatal": str(error)}
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        message, where = told(error)
        return {"failure": ["raised", message[-LONGEST_MESSAGE:], where]}


def _read(file: IO[bytes]) -> Any:
    head = file.read(HEADER.size)
    return pickle.loads(file.read(HEADER.unpack(head)[0])) if len(head) == HEADER.size else None


def _write(file: IO[bytes], message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    file.write(HEADER.pack(len(body)) + body)
    file.flush()
