"""`python -m isocompute_jax`: which commands there are, by the first lines of their own help."""

from __future__ import annotations

import ast
import pathlib
import re
import sys

from isocompute_jax.records.errors import BAD_INPUT
from isocompute_jax.records.printing import say


def commands() -> dict[str, str]:
    """Command -> what it is about, of every module that is one."""
    here = pathlib.Path(__file__).parent
    first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in _files(here))
    found = (re.match(r"`python -m isocompute_jax\.(\w+)`: (.+)", text or "") for text in first)
    return {match[1]: match[2] for match in found if match}


def _files(here: pathlib.Path) -> list[pathlib.Path]:
    return [*here.glob("*.py"), *here.glob("*/__main__.py")]


def main() -> int:
    """Lists them, where one was meant to be named."""
    known = commands()
    wanted = sys.argv[1] if sys.argv[1:] and sys.argv[1] in known else "COMMAND"
    listed = "\n".join(f"  {name:13} {known[name]}" for name in sorted(known))
    say(f"error: name the command with a dot: python -m isocompute_jax.{wanted}\n\n{listed}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
