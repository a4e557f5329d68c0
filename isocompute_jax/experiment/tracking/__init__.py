"""Where logged lines go beside the run's own logs: TensorBoard, Weights & Biases.

The logs of the run directory are the truth; trackers repeat it. So none of them may end a run or hold it up: each works
in a thread of its own behind a short queue, the first thing that fails is logged, and from then on it is left alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import pathlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from isocompute_jax.experiment.config import TrackConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError

LOG = logging.getLogger(__name__)

__all__ = ["Tracker", "Trackers", "check_installed", "make_trackers"]


def check_installed(config: TrackConfig) -> None:
    """Raises InputError where a package is missing that the config asks for."""
    needed = (
        (config.tensorboard, "tensorboard", "tensorboardX", "track"),
        (bool(config.wandb), "wandb", "wandb", "wandb"),
    )
    for asked, field, module, extra in needed:
        if asked and importlib.util.find_spec(module) is None:
            raise InputError(
                f"config.track.{field} needs {module}, which is not installed: pip install 'isocompute-jax[{extra}]', "
                "or leave the field out"
            )


def make_trackers(config: TrackConfig, path: pathlib.Path) -> Trackers:
    """The trackers of the run in the directory `path`; nothing is made before its first line is logged."""
    made: dict[str, Callable[[], Tracker]] = {}
    if config.tensorboard:
        from isocompute_jax.experiment.tracking.tensorboard import TensorBoard

        made["TensorBoard"] = lambda: TensorBoard(path)
    if config.wandb:
        from isocompute_jax.experiment.tracking.weights_and_biases import WeightsAndBiases

        made["Weights & Biases"] = lambda: WeightsAndBiases(path, project=config.wandb)
    return Trackers(made)


WAITING = 256
"""Lines that may wait for a tracker; what is more is dropped, with a warning."""
CLOSE_S = 30.0
"""How long the end of a run waits for a tracker that has not finished."""


class Tracker(Protocol):
    """Gets every line that a run logs. What it raises ends it, and nothing else."""

    def start(self, step: int) -> None:
        """A process begins, or goes on after the checkpoint of `step` (-1: with nothing)."""
        ...

    def log(self, name: str, line: Mapping[str, Any]) -> None:
        """A line was appended to the log `name`."""
        ...

    def close(self) -> None:
        """The run has ended."""
        ...


class Trackers:
    """All trackers of a run, each in a thread of its own.

    Args:
      made: name -> makes the tracker, in its thread.
    """

    def __init__(self, made: Mapping[str, Callable[[], Tracker]]):
        self._workers = [_Worker(name, make) for name, make in made.items()]

    def start(self, step: int) -> None:
        """Tells them where the run goes on."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.start(step))

    def log(self, name: str, line: Mapping[str, Any]) -> None:
        """Tells them of a line; returns at once."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.log(name, line))

    def close(self) -> None:
        """Waits until they have finished, but not for long."""
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.wait()


class _Worker:
    """One tracker's thread; it ends with the run, or with the first thing that fails."""

    def __init__(self, name: str, make: Callable[[], Tracker]):
        self._name = name
        self._make = make
        self._tasks: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(WAITING)
        self._dropped = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, task: Callable[[Tracker], None]) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            if not self._dropped:
                LOG.warning(
                    "%s does not keep up: lines are left out there. The run's own logs have them all", self._name
                )
            self._dropped = True

    def end(self) -> None:
        self._ending.set()
        with contextlib.suppress(queue.Full):  # then it looks at `_ending` when it has come to the last
            self._tasks.put_nowait(None)

    def wait(self) -> None:
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            LOG.warning("%s has not finished after %.0f s; what it lacks is in the run's own logs", self._name, CLOSE_S)

    def _run(self) -> None:
        try:
            tracker = self._make()
            while (task := self._next()) is not None:
                task(tracker)
            tracker.close()
        except BaseException as error:  # a service's client may raise anything, SystemExit too
            reason = str(error).strip() or type(error).__name__
            LOG.warning(
                "%s fails and is told no more; the run goes on, and its own logs have everything: %s",
                self._name,
                reason,
            )

    def _next(self) -> Callable[[Tracker], None] | None:
        """What is to be done next; None at the end."""
        if self._ending.is_set() and self._tasks.empty():
            return None
        return self._tasks.get()


PREFIXES = {run_files.METRICS: "train", run_files.EVAL: "eval", run_files.AGREEMENT: "agreement"}
"""Log -> what the names of its numbers begin with; other logs hold no numbers to draw."""


def prefix_of(name: str, line: Mapping[str, Any]) -> str:
    """What names of a line's numbers begin with: the log, and of an evaluation its set; empty for none."""
    prefix = PREFIXES.get(name, "")
    return f"{prefix}/{line['eval_set']}" if name == run_files.EVAL else prefix


def numbers(name: str, line: Mapping[str, Any]) -> dict[str, float]:
    """Name -> number, for every number of a line of the log `name`: `train/phase_s/update`, `eval/validation/avg@4`.

    Histograms, texts and what was not measured are left out, as is `step`: it is where the numbers stand.
    """
    prefix = prefix_of(name, line)
    columns = {key: value for key, value in line.items() if key != "step"}
    return dict(run_files.numbers_in(columns, f"{prefix}/")) if prefix else {}
