"""What a checkpoint costs a training step, and what it costs to resume from one.

    python -m benchmarks.checkpoints --mib=512 --directory=/tmp
    python -m benchmarks.checkpoints --repeats=3 --slow_mib_per_s=50 --slow_ms=20

The state is float32 parameters and two moments of random numbers, which compress as little as real ones. Beside a save
that the step waits for (the same one, waited for) and one in the background stands a plain file of the same bytes,
synced. All of them take turns within a round; each line is the median round. On a CPU the state is on the host already:
on an accelerator a step also waits for the copy.

With `--slow_mib_per_s` or `--slow_ms` the directory is slow, as storage over a network is that others use too
(`benchmarks.slow_storage`): writing is, and so are the calls that make and rename files; reading is not.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks import slow_storage
from benchmarks.shared import seconds_of
from isocompute_jax import app
from isocompute_jax.learner import TrainState
from isocompute_jax.learner.checkpoint import Checkpointer
from isocompute_jax.records import checksums

ARRAY_MIB = 16

_MIB = flags.DEFINE_integer("mib", 384, f"Size of the state, in MiB; a multiple of {3 * ARRAY_MIB}.", 3 * ARRAY_MIB)
_DIRECTORY = flags.DEFINE_string("directory", None, "Where to write; left out, the temporary directory.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Rounds.", 1)
_SLOW_MIB_PER_S = flags.DEFINE_float("slow_mib_per_s", 0.0, "What can be written a second, in MiB; 0: no limit.", 0.0)
_SLOW_MS = flags.DEFINE_float(
    "slow_ms", 0.0, "Milliseconds that each opening to write, mkdir, rename and fsync waits.", 0.0
)


def main() -> None:
    """Flags -> table."""
    if (_SLOW_MIB_PER_S.value or _SLOW_MS.value) and not slow_storage.is_slow():
        command = [sys.executable, "-m", "benchmarks.checkpoints", *sys.argv[1:]]
        directory = _DIRECTORY.value or tempfile.gettempdir()
        sys.exit(slow_storage.run(command, directory, mib_per_s=_SLOW_MIB_PER_S.value, trip_ms=_SLOW_MS.value))
    state, count = _state(_MIB.value // (3 * ARRAY_MIB))
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    with tempfile.TemporaryDirectory(dir=_DIRECTORY.value) as directory:
        rounds = [_round(pathlib.Path(directory) / str(number), state) for number in range(_REPEATS.value + 1)]
    print(f"{size / 1e6:.0f} MB in {count} arrays\n{'':34}{'seconds':>9}{'GB/s':>7}{'of waiting':>12}")
    waited = statistics.median(taken["save, waited for"] for taken in rounds[1:])
    for name in rounds[0]:
        seconds = statistics.median(taken[name] for taken in rounds[1:])
        print(f"{name:34}{seconds:9.3f}{size / 1e9 / seconds:7.2f}{seconds / waited:12.1%}")


def _state(count: int) -> tuple[TrainState, int]:
    """A state of `count` parameters with their moments, and how many arrays that is."""
    random = np.random.default_rng(0)
    trees = [
        {f"w{i}": jnp.asarray(random.standard_normal((ARRAY_MIB << 8, 1 << 10), np.float32)) for i in range(count)}
        for _ in range(3)
    ]
    return TrainState(jnp.zeros((), jnp.int32), trees[0], trees[1:]), 3 * count


def _round(path: pathlib.Path, state: TrainState) -> dict[str, float]:
    """What takes how many seconds."""
    path.mkdir()
    taken: dict[str, float] = {}

    def timed(name: str, call: Callable[[], object]) -> None:
        taken[name] = seconds_of(call)

    with Checkpointer(path / "checkpoints", state) as checkpointer:
        assert checkpointer.restore() is None
        checkpointer.wait()  # the manager is there
        timed("save, in the background: the stall", lambda: checkpointer.save(state, {}))
        checkpointer.wait()
        following = dataclasses.replace(state, step=state.step + 1)
        timed("save, waited for", lambda: (checkpointer.save(following, {}), checkpointer.wait()))
    timed("a plain file, synced", lambda: _plain(path / "plain", state))
    timed("its checksums", lambda: checksums.damage(path / "checkpoints" / "1"))
    with Checkpointer(path / "checkpoints", state) as checkpointer:
        timed("restore, checksums included", lambda: jax.block_until_ready(checkpointer.restore()))
    shutil.rmtree(path)
    return taken


def _plain(path: pathlib.Path, state: TrainState) -> None:
    with open(path, "wb") as file:
        for x in jax.tree.leaves(state):
            file.write(np.asarray(x).tobytes())
        os.fsync(file.fileno())


if __name__ == "__main__":
    app.run(main)
