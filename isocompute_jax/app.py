"""How every main starts and ends: absl flags in, one clear message and an exit code out.

Exit codes: 0 done, 1 a run failed, 2 bad input (flag, file, field), 130 interrupted by the user.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable, Sequence

from absl import app, flags
from absl import logging as absl_logging

from isocompute_jax.records.errors import InputError, RunError

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def run(main: Callable[[], None]) -> None:
    """Parses the command line, calls `main`, and turns what went wrong into a message and an exit code."""
    app.run(lambda _: sys.exit(_logged(main)), flags_parser=_parse)


def _logged(main: Callable[[], None]) -> int:
    """This package's own log as plain lines on stderr; of the libraries' only warnings, unless --verbosity asks."""
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger(__package__)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return exit_code(main)


def exit_code(main: Callable[[], None]) -> int:
    """Calls `main` and returns its exit code; errors that a user can mend are printed without a traceback."""
    try:
        main()
    except InputError as error:
        return _fail(str(error), BAD_INPUT)
    except RunError as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on from the last checkpoint", INTERRUPTED)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        place = f" ({error.filename})" if error.filename else ""
        return _fail(
            f"cannot write{place}: {error.strerror}. What was finished is kept: make room, then run the same command",
            FAILED,
        )
    return 0


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _parse(arguments: Sequence[str]) -> list[str]:
    """Flag errors of any kind (unknown, mistyped, unknown config field, unreadable config file) exit with code 2."""
    try:
        rest = flags.FLAGS(arguments)
    except (flags.Error, InputError, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, KeyError):
            error = error.args[0]
        sys.exit(_fail(f"{error}\nSee --help.", BAD_INPUT))
    if len(rest) > 1:
        sys.exit(_fail(f"unexpected argument {rest[1]!r}: flags start with --. See --help.", BAD_INPUT))
    if flags.FLAGS.help:
        sys.exit(0)
    return rest
