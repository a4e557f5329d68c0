"""What a run logs, for Weights & Biases."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import secrets
from collections.abc import Mapping
from typing import Any

# Faults of a run are told to its user, not to W&B's own error service.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from isocompute_jax.experiment.tracking import numbers, prefix_of
from isocompute_jax.records import run_files

LOG = logging.getLogger(__name__)

FOLDER = "wandb"
STATE = "isocompute.json"
INIT_S = 60.0


class WeightsAndBiases:
    """One run there for each run directory, over all of its starts.

    W&B cannot take back what it has. So a file beside its own remembers the run's id and how far each log has been
    sent, and what a resumed run logs again is not sent again. It repeats the first time, bit for bit, in all runs that
    are exact; of an asynchronous one W&B keeps what it heard first.

    Args:
      path: the run's directory.
      project: of W&B.
    """

    def __init__(self, path: pathlib.Path, *, project: str):
        self._path = path
        self._project = project
        self._state = path / FOLDER / STATE
        self._run: wandb.Run | None = None
        self._id = ""
        self._sent: dict[str, int] = {}

    def start(self, step: int) -> None:
        """Nothing: what was sent is known."""

    def log(self, name: str, line: Mapping[str, Any]) -> None:
        """Sends every number of a line that was not sent before."""
        found, what, step = numbers(name, line), prefix_of(name, line), line["step"]
        if not found:
            return
        run = self._run = self._run or self._open()
        if step <= self._sent.get(what, -1):
            return
        run.log({"step": step, **found})
        self._sent[what] = step
        self._remember()

    def close(self) -> None:
        """Waits until W&B has everything."""
        if self._run is not None:
            self._run.finish()

    def _open(self) -> wandb.Run:
        known = wandb.setup().settings
        if known.mode == "online" and not (wandb.api.api_key or known.identity_token_file):
            # On a terminal it would ask for one, amid the progress of the run.
            raise RuntimeError("no account: `wandb login`, WANDB_API_KEY, or WANDB_MODE=offline in the environment")
        (self._path / FOLDER).mkdir(exist_ok=True)
        try:
            known = json.loads(self._state.read_text(encoding="utf-8"))
            self._id, self._sent = known["id"], known["sent"]
        except FileNotFoundError:
            self._id = secrets.token_hex(4)
            self._remember()  # before the first line: a second run of the same directory would be worse than a gap
        run = wandb.init(
            project=self._project,
            name=self._path.name,
            id=self._id,
            resume="allow",
            dir=str(self._path),
            config=json.loads((self._path / run_files.CONFIG).read_text(encoding="utf-8")),
            # The address of a git remote may hold a password, and config.json has the commit.
            settings=wandb.Settings(console="off", silent=True, init_timeout=INIT_S, disable_git=True),
        )
        # Lines of several logs share a step and come one after the other: steps are a column, not W&B's own counter.
        run.define_metric("*", step_metric="step")
        LOG.info("Weights & Biases: %s", run.url or f"offline, in {self._path / FOLDER}")
        return run

    def _remember(self) -> None:
        run_files.write_atomic(self._state, json.dumps({"id": self._id, "sent": self._sent}) + "\n")
