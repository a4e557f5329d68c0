"""How a learner reaches its samplers."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class ServiceConfig:
    """The sampler service that a run samples from; without endpoints it samples in its own process.

    Attributes:
      endpoints: `host:port,host:port`, or `unix:PATH`; empty samples in the learner's process.
      token_file: file that holds the token for weight updates; empty for none.
      ca_file: PEM certificates of the authority that signed the servers'; given, connections use TLS.
      cert_file: PEM certificate of this client, for mutual TLS.
      key_file: PEM key of this client.
      push: how weights travel: `shared` through files in `shared_dir`, `stream` in chunks over gRPC, `auto` shared
        where a server can read what the learner writes, streamed elsewhere.
      shared_dir: /dev/shm, or a folder on shared storage that every server sees under this path.
      streams: parallel streams per endpoint of a streamed push.
      recompute_cache: after an update in flight, keys and values are computed anew instead of kept (PipelineRL keeps).
      stall_s: an endpoint that has work and draws no token, or does not answer, for so many seconds is taken out.
      wait_s: with every endpoint gone, the run waits so many seconds; then it checkpoints and stops.
    """

    endpoints: str = ""
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    push: Literal["auto", "shared", "stream"] = "auto"
    shared_dir: str = "/dev/shm"
    streams: int = 2
    recompute_cache: bool = False
    stall_s: float = 60.0
    wait_s: float = 1800.0
