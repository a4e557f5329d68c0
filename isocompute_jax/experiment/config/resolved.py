"""The config of another run, from its config.json: what it may say by itself, and what only with the user's leave.

A config.json lies in a run directory, which is handed on as data is. Numbers and the paths of what is read are
followed; what would run code, reach an address, or read or pass on a secret is not, unless the user trusts the file
(docs/trust.md).
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

from isocompute_jax.experiment.config.run import RunConfig, from_dict
from isocompute_jax.experiment.config.track import TrackConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks.graders.registry import check_named_by_file

SERVICE = ("endpoints", "endpoints_file", "token_file", "ca_file", "cert_file", "key_file", "shared_dir")


def read_resolved(path: str | os.PathLike[str], flag: str) -> RunConfig:
    """The config in a config.json; `flag` is how the user named the file.

    Raises:
      InputError: it is no run's config.json, or a field in it is at fault.
    """
    try:
        values = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{flag}={path}: not a run's config.json ({error!r})") from error
    return from_dict(values)


def check_trusted(config: RunConfig, path: str | os.PathLike[str], *, said: Collection[str] = ()) -> None:
    """Holds a config from a file to what a file may say.

    Args:
      config: as the file has it, and the command line.
      path: the file, for the message.
      said: fields that are the command line's.

    Raises:
      InputError: another field commands; says which.
    """
    found = [f"{field} = {value!r:.200}" for field, value in _commands(config) if field not in said]
    if found:
        raise InputError(
            f"{path} names what a file may not by itself: {'; '.join(found)}. It would run code, reach an address, or "
            f"use a secret: if you know the file and mean it, add --trust_config"
        )


def _commands(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Fields that run code, reach an address, or read or pass on a secret."""
    tasks = {f"tasks.{task}": name for task, name in config.reward.tasks.items()}
    for field, name in {"function": config.reward.function, **tasks}.items():
        try:
            check_named_by_file(name)
        except InputError:
            yield f"reward.{field}", name
    for field in ("allow", "environment"):
        if value := getattr(config.reward, field):
            yield f"reward.{field}", value
    for field in SERVICE:
        if (value := getattr(config.service, field)) != getattr(ServiceConfig, field):
            yield f"service.{field}", value
    if config.track.wandb:
        yield "track.wandb", config.track.wandb
    if config.track.prometheus_port and config.track.prometheus_address != TrackConfig.prometheus_address:
        yield "track.prometheus_address", config.track.prometheus_address
