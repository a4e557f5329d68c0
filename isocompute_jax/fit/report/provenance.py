"""What every summary.json says alike: its schema, what was read, with which versions."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any

from isocompute_jax import __version__

if TYPE_CHECKING:
    from isocompute_jax.fit.read import RunCurve

SCHEMA_VERSION = 2


def versions() -> dict[str, str]:
    """Of this package, Python and the libraries that compute."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "numpy", "scipy")}
    return {"isocompute_jax": __version__, "python": platform.python_version(), **found}


def input_row(run: RunCurve) -> dict[str, Any]:
    """A run that was read: where it stands, its hash, and its facts."""
    return {
        "run": run.run,
        "path": run.source,
        "sha256": run.sha256,
        **dataclasses.asdict(run.facts),
        "finished": run.finished,
        "evaluations": len(run.compute),
        "max_compute": run.compute[-1],
    }
