"""What reaches a terminal: text from files (names, cells, messages of others) that cannot command it or forge lines.

And what a library says that nobody needs to hear.
"""

from __future__ import annotations

import logging
import os
import sys
import unicodedata
from typing import TextIO


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text with everything that is no visible character or space as its escape: `\x1b[31m`, `\u202e`, `\n`.

    So are control characters (C0, C1), what reorders or hides text, and surrogates, which no stream can write.

    Args:
      text: any.
      lines: keep line ends and tabs, of a text of ours that has several lines.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        c if c.isprintable() or c in kept or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in text
    )


def say(text: object, *, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Prints a text of one or several lines, as `printable` has it; to stdout where no `file` is given.

    To nobody, from then on, if whoever read it has ended, as `| head` does.
    """
    try:
        print(printable(str(text), lines=True), file=file, end=end, flush=flush)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (file or sys.stdout).fileno())


MISSING_PYTORCH = "PyTorch was not found."
"""How transformers begins a warning when it is imported without PyTorch, which this package never asks it for."""


def hide_missing_pytorch() -> None:
    """Keeps that line out of the log, and nothing else; called before transformers is imported."""
    logging.getLogger("transformers").addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(MISSING_PYTORCH)
