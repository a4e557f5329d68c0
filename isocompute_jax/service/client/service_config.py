"""How a learner reaches its samplers: settings, addresses, and a list of servers that may change during a run."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import re
from typing import Literal

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import CONFIG, InputError
from isocompute_jax.records.tokens import sampler_token

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")

LOG = logging.getLogger(__name__)
FIELD = CONFIG.service.endpoints_file

Stamp = tuple[int, int, int]

_place = functools.partial(option, identity=False)
"""Where and how servers are reached, which does not make two runs different."""


@described
@dataclasses.dataclass(frozen=True)
class ServiceConfig:
    """The sampler service that a run samples from; without endpoints it samples in its own process."""

    endpoints: str = _place("", "`host:port,host:port`, or `unix:PATH`; empty samples in the learner's process.")
    endpoints_file: str = _place(
        "",
        "In place of `endpoints`: a file with one a line, and # before comments, that is read again whenever it "
        "changes: servers join and leave the run.",
        later=True,
    )
    token_file: str = _place(
        "",
        "File that holds the token for weight updates; empty for that of the environment variable ISOCOMPUTE_TOKEN, if "
        "there is one.",
    )
    ca_file: str = _place("", "PEM certificates of the authority that signed the servers'; given, connections use TLS.")
    cert_file: str = _place("", "PEM certificate of this client, for mutual TLS.")
    key_file: str = _place("", "PEM key of this client.")
    push: Literal["auto", "nccl", "shared", "stream"] = _place(
        "auto",
        "How weights travel: `shared` through files in `shared_dir`, `stream` in chunks over gRPC; `auto` shared where "
        "a server can read what the learner writes, streamed elsewhere. `nccl` sends them from the learner's GPUs to "
        "those of vLLM, and as `auto` does where that fails; no machine with GPUs has run it yet.",
    )
    shared_dir: str = _place(
        "/dev/shm",
        "/dev/shm, or a folder on shared storage that every server sees under this path. Streamed weights too are laid "
        "out here first: it needs room for two copies of what this host sends.",
    )
    streams: int = _place(2, "Parallel streams per endpoint of a streamed push.", low=1)
    recompute_cache: bool = option(
        False, "After an update in flight, keys and values are computed anew instead of kept (PipelineRL keeps)."
    )
    stall_s: float = _place(
        60.0,
        "An endpoint that has work and draws no token, or does not answer, for so many seconds is taken out.",
        low=0.001,
    )
    wait_s: float = _place(
        1800.0, "With every endpoint, or a served teacher, gone the run waits so long, checkpoints and stops.", low=0
    )
    changes: bool = _place(
        True,
        "Streams say what changed since the version that a server has, where that is less: in bfloat16 a few percent "
        "of the weights. Servers keep a second copy of them for it, in --weights_dir.",
        later=True,
    )

    def __post_init__(self) -> None:
        check(self, "config.service.")

    @property
    def remote(self) -> bool:
        """Whether servers draw, and not the learner's process."""
        return bool(self.endpoints or self.endpoints_file)

    @property
    def targets(self) -> tuple[str, ...]:
        """What `endpoints` lists, one by one."""
        return tuple(target for target in map(str.strip, self.endpoints.split(",")) if target)

    def validate(self) -> None:
        """Raises InputError for the first field that cannot work; files are looked at, nothing is connected to."""
        for target in self.targets:
            check_target(target, str(CONFIG.service.endpoints))
        repeated = {target for target in self.targets if self.targets.count(target) > 1}
        where = CONFIG.service
        for passed, message in (
            (not repeated, f"{where.endpoints} = {self.endpoints!r}: {', '.join(sorted(repeated))} is listed twice"),
            (
                not (self.endpoints and self.endpoints_file),
                f"{where.endpoints} and {where.endpoints_file} both list the servers: give one of the two",
            ),
            (
                bool(self.cert_file) == bool(self.key_file),
                f"{where.cert_file} and {where.key_file} belong together: give both, or neither",
            ),
            (
                bool(self.ca_file) or not self.cert_file,
                f"{where.cert_file} needs {where.ca_file}: without it connections do not use TLS",
            ),
            (
                not self.remote or (os.path.isdir(self.shared_dir) and os.access(self.shared_dir, os.W_OK | os.X_OK)),
                f"{where.shared_dir} = {self.shared_dir!r}: not a folder that can be written; weights are laid out "
                "there",
            ),
        ):
            if not passed:
                raise InputError(message)
        if self.endpoints_file:
            EndpointsFile(self.endpoints_file).read()
        self.token()
        for field in ("ca_file", "cert_file", "key_file"):
            self.read(field)

    def token(self) -> str:
        """What servers are shown with new weights; empty for nothing. Raises InputError as `sampler_token` does."""
        return sampler_token(self.token_file, str(CONFIG.service.token_file))

    def read(self, field: str) -> bytes:
        """What the file of a field holds; nothing when the field is empty.

        Raises:
          InputError: it cannot be read, or is empty.
        """
        path = getattr(self, field)
        if not path:
            return b""
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise InputError(f"{getattr(CONFIG.service, field)} = {path!r}: {error.strerror}") from error
        if not content.strip():
            raise InputError(f"{getattr(CONFIG.service, field)} = {path!r}: the file is empty")
        return content


def check_target(target: str, where: str) -> None:
    """Raises InputError, beginning with `where`, for what is neither `host:port` nor `unix:PATH`."""
    match = _ADDRESS.fullmatch(target)
    if (target.startswith("unix:") and target != "unix:") or (match and 0 < int(match[2]) < 2**16):
        return
    raise InputError(f"{where}: {target!r} is neither host:port (a port lies in 1 .. 65535) nor unix:PATH")


class EndpointsFile:
    """One endpoint a line; what follows a `#` is a comment. An empty list is one."""

    def __init__(self, path: str):
        self.path = path
        self._taken: Stamp | None = None
        self._seen: Stamp | None = None

    def read(self) -> tuple[str, ...]:
        """The endpoints that it lists now.

        Raises:
          InputError: it cannot be read, or a line is no endpoint; names the line.
        """
        try:
            self._taken = self._seen = self._stamp()
            with open(self.path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(f"{FIELD} = {self.path!r}: {why}") from error
        lines_of: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            target = line.partition("#")[0].strip()
            if not target:
                continue
            check_target(target, f"{FIELD}: {self.path}:{number}")
            if target in lines_of:
                raise InputError(f"{FIELD}: {self.path}:{number}: {target} stands in line {lines_of[target]} already")
            lines_of[target] = number
        return tuple(lines_of)

    def changed(self) -> tuple[str, ...] | None:
        """The endpoints, where the file has changed since it was read last; None where it has not.

        It is read when it looked the same twice: half of it may have been written when it first looks new. What cannot
        be read is warned of, once, and is no change.
        """
        try:
            stamp = self._stamp()
        except OSError as error:
            if self._seen is not None:
                LOG.warning("%s = %r: %s; the list that it had stays", FIELD, self.path, error.strerror)
            self._taken = self._seen = None
            return None
        settled, self._seen = stamp == self._seen, stamp
        if stamp == self._taken or not settled:
            return None
        try:
            return self.read()
        except InputError as error:
            LOG.warning("%s; the list that was read before stays", error)
            return None

    def _stamp(self) -> Stamp:
        status = os.stat(self.path)
        return status.st_mtime_ns, status.st_size, status.st_ino
