"""What mains report without a traceback: bad input (exit code 2) and runs that failed (exit code 1)."""

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes: a run failed, bad input, interrupted by the user."""


class InputError(ValueError):
    """Bad input from a flag, file, line or field; mains print it without a traceback and exit with code 2.

    The message says what is wrong, where (flag, file, line or field), and what to do.
    """


class RunError(RuntimeError):
    """A run that cannot continue (it diverged, say); mains print it without a traceback and exit with code 1."""


class Interrupted(KeyboardInterrupt):
    """The user has asked a run to end, and it ends here, where nothing is half-done."""
