"""The process of the untrusted program: gives everything up, runs the program, and ends without returning.

Nothing that happens here is believed but what comes out: text on standard output, or one line of JSON for each call.
The expected answers are in another process, so that there is nothing to find, and no message that would count as a
success: whoever writes into the pipe of results must write the right ones, once each.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import json
import os
import random
import resource
import signal
import sys
import types
from typing import Any, NoReturn

from . import linux
from .jail import Jail, become, restrict

RESULTS_FD = 3

PRELUDE = {
    **dict.fromkeys(
        ("Any", "Callable", "Deque", "DefaultDict", "Dict", "Generator", "Iterable", "Iterator", "List", "Optional",
         "Sequence", "Set", "Tuple", "Union"), "typing"
    ),
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"), "collections"),
    **dict.fromkeys(("cache", "cmp_to_key", "lru_cache", "reduce"), "functools"),
    **dict.fromkeys(("accumulate", "chain", "combinations", "permutations", "product"), "itertools"),
    **dict.fromkeys(("bisect_left", "bisect_right"), "bisect"),
    **dict.fromkeys(("heapify", "heappop", "heappush"), "heapq"),
    **dict.fromkeys(("ceil", "floor", "gcd", "inf", "sqrt"), "math"),
}  # fmt: skip
"""Names that judges of such problems define, with their modules: models write as if they were there."""
MODULES = ("bisect", "collections", "functools", "heapq", "itertools", "math", "operator", "random", "re", "string")
"""Modules that are there by their names, too. All of these are loaded once, for all programs."""


def run(
    job: dict[str, Any], stdin: int, stdout: int, stderr: int, results: int | None, jail: Jail, place: str
) -> NoReturn:
    """Turns this process into the program, in the directory `place`; its exit code is the program's."""
    code = 1
    try:
        _connect(stdin, stdout, stderr, results)
        os.chdir(place)
        _limit(job["limits"])
        _give_up_rights(jail)
        _forget(place)
        code = _finish(lambda: _calls(job) if results is not None else _main(job))
    finally:
        os._exit(code)


def _connect(stdin: int, stdout: int, stderr: int, results: int | None) -> None:
    """A session, pipes and signal handlers of its own, and no other file that is open here."""
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    # 0 to 2 are open in the server and so none of these; 3 may be one, and is taken last.
    for descriptor, number in ((stdin, 0), (stdout, 1), (stderr, 2), (results, RESULTS_FD)):
        if descriptor is not None:
            os.dup2(descriptor, number)
    os.closerange(3 if results is None else RESULTS_FD + 1, 1 << 16)


def _limit(limits: dict[str, int | None]) -> None:
    """The limits of one process; soft and hard alike, so that they cannot be raised again."""
    wanted = {
        "RLIMIT_CPU": limits["cpu_s"],
        "RLIMIT_AS": limits["memory_bytes"],
        "RLIMIT_FSIZE": limits["file_bytes"],
        "RLIMIT_NOFILE": limits["open_files"],
        "RLIMIT_NPROC": limits["processes"],
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    for name, value in wanted.items():
        number = getattr(resource, name, None)
        if number is None or value is None:
            continue
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(number, (value, value))
        except (OSError, ValueError):  # macOS refuses some, RLIMIT_AS above all
            continue


def _give_up_rights(jail: Jail) -> None:
    """Another user, no capabilities, and no program that would give them back."""
    if jail.uid is not None:
        become(jail.uid)
    if sys.platform == "linux":
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.drop_capabilities()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        restrict(jail)


def _forget(place: str) -> None:
    """An environment that says nothing, fresh standard streams, and the same random numbers for everybody."""
    random.seed(0)  # a fork has just seeded it anew; hashes are the same already: rewards can be repeated
    os.umask(0o077)
    os.environ.clear()
    os.environ.update(HOME=place, TMPDIR=place, LANG="C.UTF-8")
    builtins.exit = builtins.quit = sys.exit  # which the module `site` would have made
    sys.argv = ["program.py"]
    ours = os.path.dirname(os.path.dirname(__file__))
    sys.path[:] = [path for path in sys.path if path != ours and os.path.isdir(path)]
    sys.stdin = sys.__stdin__ = _text(0, "r", errors="replace")
    sys.stdout = sys.__stdout__ = _text(1, "w", errors="strict")
    sys.stderr = sys.__stderr__ = _text(2, "w", errors="backslashreplace")


def _text(descriptor: int, mode: str, *, errors: str) -> Any:
    return open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)


def _finish(body: Any) -> int:
    """Runs `body` and what Python does at the end of a process, but for the slow clearing of memory."""
    code = 0
    for step in (body, _join_threads, atexit._run_exitfuncs, sys.stdout.flush):
        try:
            step()
        except SystemExit as error:
            code = code or (error.code if isinstance(error.code, int) else int(error.code is not None))
        except BaseException as error:
            _report(error)
            code = code or 1
    return code & 0xFF


def _report(error: BaseException) -> None:
    """The traceback, of the program's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _join_threads() -> None:
    if "threading" in sys.modules:
        threading = sys.modules["threading"]
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()


def _load(source: str, name: str) -> dict[str, Any]:
    """Runs the program's text as the module `name`."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    for word, home in PRELUDE.items():
        if word in source:
            setattr(module, word, getattr(sys.modules[home], word))
    for word in MODULES:
        if word in source:
            setattr(module, word, sys.modules[word])
    exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def _main(job: dict[str, Any]) -> None:
    _load(job["source"], "__main__")


def _calls(job: dict[str, Any]) -> None:
    """One line of JSON for each call: `[index, value]`, or `[index]` where it failed."""
    namespace = _load(job["source"], "solution")
    for index, call in enumerate(job["calls"]):
        try:
            answer = [index, plain(_value(call, namespace))]
            line = json.dumps(answer)
        except BaseException as error:
            _report(error)
            line = json.dumps([index])
        view = memoryview(f"{line}\n".encode())
        while view:
            view = view[os.write(RESULTS_FD, view) :]


def _value(call: tuple[str, Any], namespace: dict[str, Any]) -> Any:
    """What an expression, or a function or method of `Solution` on its arguments, gives."""
    name, arguments = call
    if arguments is None:
        return eval(name, namespace)
    if name not in namespace and "Solution" in namespace:
        return getattr(namespace["Solution"](), name)(*arguments)
    return namespace[name](*arguments)


def plain(value: Any) -> Any:
    """A value in what the grader compares: lists, dicts with text keys, numbers, text, bool and None.

    Tuples become lists, sets lists in order. Only exact types count: an object of a class of the program's own,
    whatever it overrides, is refused.

    Raises:
      TypeError: it is, or holds, something else.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple, collections.deque):
        return [plain(item) for item in value]
    if kind in (set, frozenset):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, dict):
        return {_key(key): plain(item) for key, item in dict.items(value)}
    raise TypeError(f"a test cannot compare a {kind.__name__}")


def _key(key: Any) -> str:
    return key if type(key) is str else repr(plain(key))
