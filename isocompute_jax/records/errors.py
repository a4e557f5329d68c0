"""The one exception that a user can cause: bad input, with the place at fault and the remedy."""


class InputError(ValueError):
    """Bad input from a flag, file, line or field; mains print it without a traceback and exit with code 2.

    The message says what is wrong, where (flag, file, line or field), and what to do.
    """
