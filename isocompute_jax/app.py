"""How every main starts and ends: absl flags in, one clear message and an exit code out.

Exit codes: 0 done, 1 a run failed, 2 bad input (flag, file, field), 130 interrupted by the user.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import os
import re
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from absl import app, flags
from absl import logging as absl_logging

from isocompute_jax import accelerators, command_line
from isocompute_jax.records.errors import BAD_INPUT, FAILED, INTERRUPTED, InputError, RunError
from isocompute_jax.records.printing import printable, say

# gRPC adds a line each time that it cannot reach a server, where we say it once; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

T = TypeVar("T")

EXTRAS = {
    "train": (
        "flax", "gguf", "grain", "httpx2", "jaxtyping", "latex2sympy2_extended", "math_verify", "msgpack",
        "optax", "orbax", "safetensors", "sympy", "tokenizers", "transformers",
    ),
    "gym": ("reasoning_gym",),
    "kubernetes": ("kubernetes", "yaml", "urllib3"),
    "serve": ("google", "grpc", "grpc_health", "grpc_reflection", "prometheus_client", "xxhash"),
    "slurm": ("submitit",),
    "track": ("tensorboardX",),
    "wandb": ("wandb",),
}  # fmt: skip
"""Extra of the package -> the modules that it brings."""

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)


def run(main: Callable[..., None], *, actions: Sequence[str] = ()) -> None:
    """Parses the command line, calls `main`, and turns what went wrong into a message and an exit code.

    A main with `actions` is called with the one that the command line begins with; with an empty text where there is
    none.
    """
    sys.excepthook = _uncaught
    chosen = [sys.argv.pop(1)] if sys.argv[1:2] and sys.argv[1] in actions else [""] * bool(actions)
    app.run(lambda _: sys.exit(_logged(lambda: main(*chosen))), flags_parser=_parse)


_config: dict[str, Any] | None = None
"""What --config and the flags of its fields spell, once the command line is read."""


def config_values() -> dict[str, Any]:
    """The fields of the config that --config and the flags of its fields spell, group by group.

    Raises:
      InputError: there is none.
    """
    if _config is None:
        raise InputError(command_line.NO_CONFIG)
    return _config


def needed(flag: flags.FlagHolder[T | None], what: str) -> T:
    """The value of a flag that has no default.

    Raises:
      InputError: it is left out, or empty; says `what` to do.
    """
    if not flag.value:
        raise InputError(f"--{flag.name} is missing: {what}")
    return flag.value


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Around what a main imports before it has flags: where an extra is missing, the program ends and names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if extra_of(error) is None:
            raise
        sys.exit(_missing(error))


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra of this package that brings the module that was not found; None where none does."""
    module = (error.name or "").partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if module in modules), None)


def _missing(error: ModuleNotFoundError) -> int:
    extra = extra_of(error)
    return _fail(
        f"{error.name} is not installed: it belongs to the extra {extra!r}, which this command needs: "
        f"pip install 'isocompute-jax[{extra}]' (in a clone: .venv/bin/python -m pip install -c constraints.txt "
        f"-e '.[{extra}]')",
        BAD_INPUT,
    )


def _logged(main: Callable[[], None]) -> int:
    """This package's own log as plain lines on stderr; of the libraries' only warnings, unless --verbosity asks."""
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)
        # A checkpoint that fails is logged with a traceback by each of orbax's threads; the exception says it once.
        logging.getLogger("absl").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        sys.unraisablehook = _unraisable
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger(__package__)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    code = exit_code(functools.partial(_started, main))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more Ctrl-C cannot end it sooner, only noisily
    return code


def _started(main: Callable[[], None]) -> None:
    accelerators.claim_memory()
    main()


class _Line(logging.Formatter):
    """A record as text that cannot command a terminal; what follows its first line is indented, and forges none."""

    def format(self, record: logging.LogRecord) -> str:
        return _indented(super().format(record))


def _indented(text: str) -> str:
    return printable(text, lines=True).replace("\n", "\n  ")


def _uncaught(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """A traceback, whose last line may quote a file."""
    say(_indented("".join(traceback.format_exception(kind, error, trace)).rstrip()), file=sys.stderr)


def _unraisable(dropped: sys.UnraisableHookArgs) -> None:
    """Says what Python could not raise, but for the many writes that find that orbax gave up on their checkpoint."""
    if not (isinstance(dropped.exc_value, RuntimeError) and str(dropped.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(dropped)


def exit_code(main: Callable[[], None]) -> int:
    """Calls `main` and returns its exit code; errors that a user can fix are printed without a traceback."""
    try:
        main()
    except InputError as error:
        return _fail(str(error), BAD_INPUT)
    except RunError as error:
        return _fail(str(error), FAILED)
    except ModuleNotFoundError as error:
        if extra_of(error) is None:
            raise
        return _missing(error)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command resumes from the last checkpoint", INTERRUPTED)
    except Exception as error:
        number = _os_error(error)
        if number not in CANNOT_WRITE:
            raise
        place = getattr(error, "filename", None)
        return _fail(
            f"cannot write{f' ({place})' if place else ''}: {os.strerror(number)}. What was finished is kept: make "
            "room, then run the same command",
            FAILED,
        )
    return 0


def _os_error(error: Exception) -> int:
    """The system's error number behind an exception, or 0; orbax and safetensors only mention it in their text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    mentioned = re.search(r"\(os error (\d+)\)|os_error_code='(\d+)'", str(error))
    return int(mentioned[1] or mentioned[2]) if mentioned else 0


def _fail(message: str, code: int) -> int:
    say(_indented(f"error: {message}"), file=sys.stderr)
    return code


def _parse(arguments: Sequence[str]) -> list[str]:
    """Flag errors of any kind (unknown, mistyped, unknown config field, unreadable config file) exit with code 2."""
    global _config
    try:
        if "config" in flags.FLAGS:
            arguments, _config = command_line.read_config(arguments)
        rest = flags.FLAGS(arguments)
    except SystemExit:  # absl shows the help, and takes having been asked for a failure
        sys.exit(0)
    except BrokenPipeError:  # of who reads the help no further
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        sys.exit(0)
    except InputError as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and extra_of(error.__cause__):  # of a config file
            sys.exit(_missing(error.__cause__))
        sys.exit(_fail(str(error), BAD_INPUT))
    except Exception as error:
        message = command_line.explained(error, _config)
        if message is None:
            raise
        sys.exit(_fail(message, BAD_INPUT))
    for name in flags.FLAGS:
        if isinstance(value := flags.FLAGS[name].value, float) and not math.isfinite(value):
            sys.exit(_fail(f"--{name}={value:g}: give a finite number", BAD_INPUT))
    if len(rest) > 1:
        sys.exit(_fail(command_line.stray(rest[1]), BAD_INPUT))
    return rest
