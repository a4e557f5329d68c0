"""What mains report without a traceback: bad input (exit code 2) and runs that failed (exit code 1)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Self

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes: a run failed, bad input, interrupted by the user."""


@dataclasses.dataclass(frozen=True)
class Field:
    """A field or parameter in a message of InputError: `ThinkingConfig.low` where its class is all that is known."""

    name: str
    prefix: str = ""  # stands before it: `ThinkingConfig.`, `config.sampling.`, `--`

    def __str__(self) -> str:
        return f"{self.prefix}{self.name}"


class InputError(ValueError):
    """Bad input from a flag, file, line or field; mains print it without a traceback and exit with code 2.

    The message says what is wrong, where (flag, file, line or field), and what to do. A class or function that cannot
    know by which name its user sets a field gives that as a `Field`, apart from the text around it; who passed the
    field on knows, and renames it:

        raise InputError(Field("row_tokens"), f" = {row_tokens} holds no sequence: raise it")
        raise error.renamed("config.packing.")
    """

    def __init__(self, *parts: str | Field):
        super().__init__(*parts)

    def __str__(self) -> str:
        return "".join(map(str, self.args))

    @property
    def field(self) -> str:
        """The field at fault, the first that the message names; empty where it names none apart from its text."""
        return next((str(part) for part in self.args if isinstance(part, Field)), "")

    def renamed(self, prefix: str, names: Mapping[str, str] | None = None) -> Self:
        """The same error, about the fields as they are called elsewhere.

        Args:
          prefix: stands before the name of every field in place of what stood there.
          names: those that are called otherwise, with any prefix of theirs.
        """
        names = names or {}
        parts = (part if isinstance(part, str) else _renamed(part, prefix, names) for part in self.args)
        return type(self)(*parts)


@contextlib.contextmanager
def fields_called(prefix: str, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within it, errors call fields as `InputError.renamed` says."""
    try:
        yield
    except InputError as error:
        raise error.renamed(prefix, names) from None


def _renamed(field: Field, prefix: str, names: Mapping[str, str]) -> Field:
    return Field(names[field.name]) if field.name in names else Field(field.name, prefix)


class RunError(RuntimeError):
    """A run that cannot continue (it diverged, say); mains print it without a traceback and exit with code 1."""


class Interrupted(KeyboardInterrupt):
    """The user has asked a run to end, and it ends here, where nothing is half-done."""


class ConfigField:
    """A field of a run's config, in messages of rooms that are part of a run: `{CONFIG.service.ca_file}`.

    It prints as this program's user sets it: `config.service.ca_file`, or by the flag that `set_by_flags` gives.
    """

    def __init__(self, path: str):
        self._path = path

    def __getattr__(self, name: str) -> ConfigField:
        if name.startswith("_"):
            raise AttributeError(name)
        return ConfigField(f"{self._path}.{name}")

    def __str__(self) -> str:
        return _flags.get(self._path, self._path)


CONFIG = ConfigField("config")
_flags: Mapping[str, str] = {}


@contextlib.contextmanager
def set_by_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Within it, fields of a run's config that have a flag of this program are called by it in every message.

    Args:
      flags: `config.GROUP.FIELD` -> `--FLAG`.
    """
    global _flags
    before, _flags = _flags, flags
    try:
        yield
    finally:
        _flags = before
