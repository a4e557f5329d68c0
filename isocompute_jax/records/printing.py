"""What reaches a terminal: text from files (names, cells, messages of others) that cannot command it or forge lines."""

from __future__ import annotations

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
    """Prints a text of one or several lines, as `printable` has it; to stdout where no `file` is given."""
    print(printable(str(text), lines=True), file=file, end=end, flush=flush)
