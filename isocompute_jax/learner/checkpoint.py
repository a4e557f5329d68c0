"""Checkpoints of the learner: orbax for the sharded state, JSON for what the loop needs to resume exactly.

They are written in the background: `save` returns when the state is on the host, and the next update may overwrite it
on the devices. A checkpoint is whole or absent, because orbax renames it when all is written; and it holds checksums
of its files, so that one that was damaged later is told from a whole one and the one before it is restored.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import logging
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from isocompute_jax.learner.state import TrainState
from isocompute_jax.records import checksums
from isocompute_jax.records.errors import InputError, RunError

LOG = logging.getLogger(__name__)

SPARE_BYTES = 1 << 20
"""What a checkpoint takes beside its arrays, at most: indices, shardings, metadata."""
WAITED_S, WRITTEN_PER_S = 1.0, 2e8
"""What donating waits for a checkpoint at most: so many seconds, and those of its bytes at this rate."""
MARK = "mark"
"""Key of `Mark` in a checkpoint's JSON. Checkpoints of releases before it have no checksums either."""
CORRUPT = ".corrupt"
"""What is appended to the name of a damaged checkpoint."""
TIMESTAMPS = ("_CHECKPOINT_METADATA",)
"""Files that orbax writes once more when all others are done, and can do without."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """Why a checkpoint may outlive those that follow it."""

    milestone: bool = False  # whether it is kept for good
    score: float | None = None  # how good its weights are, the higher the better; None where that was not measured


UNMARKED = Mark()


class Retention:
    """Keeps the last `keep_last`, the best `keep_best` of those with a score, and every milestone.

    It is a preservation policy of orbax, which deletes the others as soon as a new checkpoint is whole. Of equal scores
    the later is better. `marks` are those of the checkpoints that exist, by name.
    """

    def __init__(self, *, keep_last: int, keep_best: int = 0):
        self._keep_last, self._keep_best = keep_last, keep_best
        self.marks: Mapping[int, Mark] = {}

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any = None) -> list[bool]:
        """Whether each of the checkpoints, which have a `step` each and come in their order, is kept."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        marks = {step: self.marks.get(step, UNMARKED) for step in steps}
        scored = sorted((mark.score, step) for step, mark in marks.items() if mark.score is not None)
        kept = set(steps[-self._keep_last :]) | {step for step, mark in marks.items() if mark.milestone}
        kept |= {step for _, step in scored[max(len(scored) - self._keep_best, 0) :]}
        return [step in kept for step in steps]


def _again(x: jax.Array) -> jax.Array:
    """The same array in the same memory: orbax leaves a view in what it writes, which then cannot be donated."""
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, [part.data for part in x.addressable_shards])


class Checkpointer:
    """Writes and reads the checkpoints of a run, which are named by updates.

    It is a context: leaving it waits until what `save` began is written. In a run of several processes all of them
    call the same methods in the same order.

    Args:
      directory: where checkpoints live; made on the first save.
      like: a state, `init_state`'s say: a restored one has its shapes and types, and is put where it lies, which may
        be another mesh than the one that saved it, of another number of processes.
      retention: which checkpoints are kept.
      decide: calls a function in one process of the run and gives all of them its value, or its exception.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        like: TrainState,
        *,
        retention: Retention | None = None,
        decide: Callable[[Callable[[], Any]], Any] = lambda function: function(),
    ):
        self.directory = pathlib.Path(directory).absolute()
        self._retention = retention or Retention(keep_last=2)
        self._decide = decide
        self._abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
        self._on_host = all(device.platform == "cpu" for device in like.step.sharding.device_set)
        self._bytes = sum(x.nbytes for x in jax.tree.leaves(like)) + SPARE_BYTES
        self._writing = -1
        self._waited_until = 0.0

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        """Made when checkpoints that cannot be read have been set aside."""
        return ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._retention,
                cleanup_tmp_directories=True,  # of a process that was killed
                lightweight_initialize=True,
                single_host_load_and_broadcast=True,  # shared storage may show other hosts what was there before
                async_options=ocp.options.AsyncOptions(post_finalization_callback=self._sign),
            ),
        )

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if "_manager" not in self.__dict__:
            return
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            # What ends the run is said by its own exception.
            LOG.warning("The last checkpoint could not be written: %s", failure)
        finally:
            self._manager.close()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written. One process may ask alone."""
        # Without a manager nothing is: making one takes all processes.
        return "_manager" in self.__dict__ and self._manager.is_saving_in_progress()

    def save(self, state: TrainState, loop: dict[str, Any], *, mark: Mark = UNMARKED) -> None:
        """Begins to save `state` and the JSON-able `loop` under the state's step, unless that step is saved already.

        Returns when `state` is on the host. It first waits for the checkpoint before it.

        Raises:
          OSError: the disk is full, now or while the checkpoint before this one was written; what is whole is kept.
          RunError: that one could not be written for another reason.
        """
        step = int(state.step)
        if step == self._manager.latest_step():
            return
        self.wait()
        if not self._decide(self._has_room):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))
        self._retention.marks = {**self._retention.marks, step: mark}
        self._writing = step
        self._waited_until = time.monotonic() + WAITED_S + self._bytes / WRITTEN_PER_S
        content = {**loop, MARK: dataclasses.asdict(mark)}
        saved = jax.tree.map(_again, state) if self._on_host else state
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(saved), loop=ocp.args.JsonSave(content))
        try:
            self._manager.save(step, args=arguments)
        except Exception as error:
            raise self._failed(error) from error

    def wait(self) -> None:
        """Waits until what was begun is whole.

        Raises:
          OSError: the disk is full; earlier checkpoints are kept.
          RunError: it could not be written for another reason.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from error

    def wait_before_donation(self) -> None:
        """Waits, before a state is donated, until it is written, if that is done from the memory in which it lies.

        What donates it would copy it otherwise: twice the memory for as long as it is being written. On storage that
        is slow that is better than to wait.

        Raises:
          OSError, RunError: as `wait`.
        """
        if not self._on_host or not self.busy:
            return
        while self.busy and time.monotonic() < self._waited_until:
            time.sleep(0.005)
        if not self.busy:
            self.wait()

    def restore(self) -> tuple[TrainState, dict[str, Any]] | None:
        """The last whole checkpoint, or None when there has been none.

        One that is damaged is warned of, and set aside under a name that says so.

        Raises:
          InputError: every checkpoint is damaged.
          RunError: a whole one cannot be read.
        """
        step, found = self._decide(lambda: [newest_whole(self.directory), marks(self.directory)])
        self._retention.marks = {name: Mark(milestone, score) for name, milestone, score in found}
        if step is None:
            return None
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(self._abstract), loop=ocp.args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=arguments)
        except Exception as error:
            raise RunError(
                f"{self.directory / str(step)} cannot be read ({first_line(error)}). If it was damaged, move it away: "
                "the same command then resumes from the checkpoint before it"
            ) from error
        return restored["state"], restored["loop"]

    def _sign(self) -> None:
        """Adds the checksums, in the lead process, to a checkpoint that is all written but not yet renamed."""
        for path in self.directory.glob(f"{self._writing}.*tmp*"):
            checksums.write_sums(path, leave_out=TIMESTAMPS)

    def _has_room(self) -> bool:
        """Whether a checkpoint fits, so that a full disk is met before it takes the time to fill it."""
        return shutil.disk_usage(self.directory).free >= self._bytes

    def _failed(self, error: Exception) -> OSError | RunError:
        """What is raised where a checkpoint could not be written, with its name."""
        path = self.directory / str(self._writing)
        if jax.process_count() == 1:  # of several this one ends with what it raises, and nobody else would take part
            self._manager.reload()  # it has forgotten those that it was about to delete
        number = _error_number(error)
        if number:
            return OSError(number, os.strerror(number), str(path))
        return RunError(
            f"the checkpoint {path} could not be written ({first_line(error)}). Earlier ones are kept: the same "
            "command resumes from the last"
        )


def _error_number(error: BaseException | None) -> int:
    """The system's error number behind an exception, or 0; tensorstore only mentions it in its text."""
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        mentioned = re.search(r"\(os error (\d+)\)|os_error_code='(\d+)'", str(error))
        if mentioned:
            return int(mentioned[1] or mentioned[2])
        error = error.__cause__
    return 0


def newest_whole(directory: pathlib.Path) -> int | None:
    """The name of the last checkpoint that is whole; damaged ones after it are warned of and set aside.

    Raises:
      InputError: there are only damaged ones.
    """
    for step in sorted(names(directory), reverse=True):
        why = damage(directory / str(step))
        if why is None:
            return step
        aside = set_aside(directory / str(step))
        LOG.warning("checkpoint %s is damaged: %s. It is %s now, and the one before is tried", step, why, aside)
    damaged = sorted(path.name for path in directory.glob(f"*{CORRUPT}*"))
    if damaged:
        raise InputError(
            f"{directory}: no checkpoint is whole ({', '.join(damaged)}). Bring one back from a copy, named by its "
            "number alone; or remove the directory, and the run begins again"
        )
    return None


def read_params(path: pathlib.Path, like: Any) -> Any:
    """The parameters of a checkpoint, in the host's memory.

    Args:
      path: of the checkpoint.
      like: their shapes and dtypes.

    Raises:
      RunError: they are others, or the checkpoint is gone meanwhile.
    """
    wanted = {"params": like}
    kinds = jax.tree.map(lambda x: ocp.RestoreArgs(restore_type=np.ndarray, dtype=x.dtype), wanted)
    arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=kinds, partial_restore=True)
    try:
        with ocp.PyTreeCheckpointer() as reader:
            params = reader.restore(path.absolute() / "state", args=arguments)["params"]
    except Exception as error:
        raise RunError(f"{path} cannot be read: {first_line(error)}") from error
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(like), strict=True)
    wrong = [f"{a.shape} there, {b.shape} of the model" for a, b in pairs if a.shape != b.shape]
    if wrong:
        raise RunError(f"{path} holds parameters of another model: {wrong[0]}")
    return params


def names(directory: pathlib.Path) -> list[int]:
    """The checkpoints of a directory, by name, in no order."""
    return [int(path.name) for path in directory.glob("*") if path.name.isdigit()]


def damage(path: pathlib.Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None where nothing is.

    Of checkpoints without checksums, from earlier releases, only the JSON is read.
    """
    if not (path / checksums.SUMS).exists():
        try:
            return f"{checksums.SUMS} is missing" if MARK in read_loop(path) else None
        except (OSError, ValueError) as error:
            return f"loop/metadata cannot be read ({error})"
    return checksums.damage(path)


def read_loop(path: pathlib.Path) -> dict[str, Any]:
    """The JSON of a checkpoint.

    Raises:
      OSError, ValueError: it is missing, or broken.
    """
    return json.loads((path / "loop" / "metadata").read_text(encoding="utf-8"))


def marks(directory: pathlib.Path) -> list[tuple[int, bool, float | None]]:
    """Name, milestone and score of all checkpoints; those that cannot be read are left out."""
    found = []
    for step in names(directory):
        try:
            mark = Mark(**read_loop(directory / str(step)).get(MARK, {}))
        except (OSError, ValueError, TypeError):
            continue
        found.append((step, mark.milestone, mark.score))
    return found


def set_aside(path: pathlib.Path) -> pathlib.Path:
    """Renames a damaged checkpoint, so that its step can be saved again; returns its new path."""
    aside, number = path.with_name(path.name + CORRUPT), 1
    while aside.exists():
        aside, number = path.with_name(f"{path.name}{CORRUPT}.{number}"), number + 1
    return path.rename(aside)


def first_line(error: BaseException) -> str:
    """Of what an exception says: tensorstore's texts are long."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
