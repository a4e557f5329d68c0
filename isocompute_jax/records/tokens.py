"""Secrets that a run is given: from files or the environment, never from flags, which `ps` and config.json show."""

from __future__ import annotations

import os
import stat
import urllib.parse

from isocompute_jax.records.errors import InputError

SAMPLER_TOKEN = "ISOCOMPUTE_TOKEN"
"""Environment variable of the token that weight updates need, where no file holds it."""
REWARD_TOKEN = "ISOCOMPUTE_REWARD_TOKEN"
"""Environment variable of the token that reward services get."""
TELLING = ("key", "token", "secret", "password", "passwd", "auth", "signature")
"""What the name of a query's field has in it that holds a secret."""


def sampler_token(path: str, field: str) -> str:
    """The token in a file, or without one that of `SAMPLER_TOKEN`; empty for none.

    Args:
      path: of the file; empty for none.
      field: what the user knows it as.

    Raises:
      InputError: the file cannot be read, or other users can (`_readable_by_others`), or what is there is no line of
        printable ASCII. A name that looks like no path is not repeated: it may be the token itself.
    """
    if not path:
        return _checked(os.environ.get(SAMPLER_TOKEN, ""), SAMPLER_TOKEN)
    if not os.path.exists(path) and os.sep not in path:
        raise InputError(
            f"{field} names no file here; it is not repeated, for it may be the token itself, which belongs in a file "
            f"that you alone can read, or in the environment as {SAMPLER_TOKEN}"
        )
    where = f"{field}={path}" if field.startswith("--") else f"{field} = {path!r}"
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            text = file.read().decode("ascii", "replace")
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}") from error
    if _readable_by_others(found):
        raise InputError(
            f"{where}: other users can read or change it (mode {stat.S_IMODE(found.st_mode):04o}): chmod 600 it, and "
            f"make a new token if they may have; where files keep no modes, use {SAMPLER_TOKEN} of the environment"
        )
    if not text.strip():
        raise InputError(f"{where}: the file is empty")
    return _checked(text, where)


def reward_token() -> str:
    """The token of `REWARD_TOKEN`; empty for none. Raises InputError where it is no line of printable ASCII."""
    return _checked(os.environ.get(REWARD_TOKEN, ""), REWARD_TOKEN)


def check_url(url: str, field: str) -> None:
    """Raises InputError for an address with a secret in it, which logs and config.json would repeat."""
    parts = urllib.parse.urlsplit(url)
    names = [name.lower() for name, _ in urllib.parse.parse_qsl(parts.query, keep_blank_values=True)]
    if parts.password or parts.username or any(word in name for word in TELLING for name in names):
        raise InputError(
            f"{field}: the address at {parts.hostname} has a secret in it, and stands in config.json and in logs: "
            f"leave it out, and put the service's token into the environment as {REWARD_TOKEN}; it is sent as "
            "`Authorization: Bearer TOKEN`"
        )


def _readable_by_others(found: os.stat_result) -> bool:
    """Whether a file's mode lets others in; a pipe has no name to be opened by.

    Root's file may let our group read: so Kubernetes hands a secret to a container that runs as another user.
    """
    ours = stat.S_IRGRP if found.st_uid == 0 and os.geteuid() != 0 else 0
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~ours)


def _checked(text: str, what: str) -> str:
    token = text.strip()
    if token and not (token.isascii() and token.isprintable()):
        raise InputError(f"{what}: must hold one line of printable ASCII")
    return token
