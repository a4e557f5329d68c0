"""What benchmarks share: Markdown tables, flags, timings, measurements in processes of their own, random rollouts.

Imports nothing heavy.
"""

from __future__ import annotations

import io
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Completion, RolloutGroup


def row(*cells: object) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def print_row(*cells: object) -> None:
    """Prints it at once."""
    print(row(*cells), flush=True)


def head(columns: Sequence[str], *, left: Collection[int] = (0,)) -> list[str]:
    """The head of a Markdown table, of which columns `left` are aligned to the left and the others to the right."""
    return [row(*columns), row(*(":--" if place in left else "--:" for place in range(len(columns))))]


def print_head(columns: Sequence[str], *, left: Collection[int] = (0,)) -> None:
    """Prints it at once."""
    print("\n".join(head(columns, left=left)), flush=True)


def spread(values: Iterable[float]) -> str:
    """From the least to the greatest."""
    ordered = sorted(values)
    return f"{ordered[0]:.2f} .. {ordered[-1]:.2f}"


def percent(hits: np.ndarray) -> str:
    """A share with its Monte-Carlo standard error."""
    share = hits.mean()
    return f"{share:.1%} ± {100 * np.sqrt(share * (1 - share) / len(hits)):.1f}"


def numbers(flag: flags.FlagHolder) -> list[float]:
    """The values of a list flag."""
    try:
        return [float(text) for text in flag.value]
    except ValueError:
        raise InputError(f"--{flag.name}={','.join(flag.value)} must be numbers with commas between them") from None


def names(flag: flags.FlagHolder, known: Collection[str]) -> list[str]:
    """The values of a list flag, each of which is one of the names that are known; empty ones are left out."""
    given = [name for name in flag.value if name]
    if unknown := [name for name in given if name not in known]:
        raise InputError(f"--{flag.name}: {unknown[0]!r} is none of {', '.join(known)}")
    return given


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_seconds(work: Callable[[], object], repeats: int, *, warm_up: int = 2) -> float:
    """Of so many calls, after some that are not timed."""
    return statistics.median([seconds_of(work) for _ in range(warm_up + repeats)][warm_up:])


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round, in which all take turns; a round before them is not counted."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            taken = seconds_of(way)
            found[name] += [taken] if number else []
    return found


def in_a_process(module: str, arguments: Sequence[str], *, what: str) -> dict[str, Any]:
    """What `python -m benchmarks.MODULE` prints in its last line, as JSON.

    Raises:
      RunError: it failed; names what was measured.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{what}: it failed\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_mib() -> float:
    """The most resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # in KiB on Linux


def random_group(
    rng: np.random.Generator, name: str, prompt: int, lengths: Iterable[int], *, vocabulary: int = 150_000
) -> RolloutGroup:
    """A group of random tokens: so many of its prompt, and as many of each completion as `lengths` say."""

    def completion(length: int) -> Completion:
        ids = rng.integers(0, vocabulary, length).astype(np.int32)
        logprobs = rng.normal(-1.0, 0.5, length).astype(np.float32)
        return Completion.drawn(ids, logprobs, np.zeros(length, np.int32), "length")

    ids = rng.integers(0, vocabulary, prompt).astype(np.int32)
    return RolloutGroup(name, 0, ids, tuple(map(completion, lengths)))


def kept_points(path: str | None) -> dict[str, Any]:
    """What an earlier call left in a file; nothing where there is none."""
    return json.loads(pathlib.Path(path).read_text()) if path and pathlib.Path(path).exists() else {}


def save_picture(figure: Any, path: pathlib.Path) -> None:
    """A figure of matplotlib as a small PNG, in 64 colours."""
    from PIL import Image  # a dependency of matplotlib

    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    Image.open(data).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)
