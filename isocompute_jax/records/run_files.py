"""The run directory: its files, their schema, and how they are read, written and cut back.

    config.json     resolved config, seed, versions, commit, devices, and the facts a fitter needs (see `RunFacts`)
    metrics.jsonl   one line per step          (reward, entropy, KL, ratios, phase times, ...)
    eval.jsonl      one line per evaluation and `eval_set` (avg@k, best@k, worst@k, epochs, histogram, ...)
    agreement.jsonl one line per check of a sampler service against the learner (differences of log-probabilities)
    rollouts.jsonl  some of the rollouts, to be read (text, tokens, log-probabilities, versions, rewards)
    fleet.json      what the learner knows of its sampler servers, as long as it runs
    history.parquet one row per training problem: attempts, solves, rate, last group, whether retired (at the end)
    checkpoints/    orbax, named by updates
    exports/step-N/ Hugging Face directories of the weights after step N, where they were asked for
    model/          the same of the last step (at the end)
    DONE            written last

Every line of the logs has `step`, `compute` (rollouts), `tokens`, `wall_s` and `device_hours`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from isocompute_jax.records.errors import InputError

CONFIG = "config.json"
METRICS = "metrics.jsonl"
EVAL = "eval.jsonl"
AGREEMENT = "agreement.jsonl"
ROLLOUTS = "rollouts.jsonl"
FLEET = "fleet.json"
HISTORY = "history.parquet"
LOCK = ".lock"
CHECKPOINTS = "checkpoints"
EXPORTS = "exports"
MODEL = "model"
DONE = "DONE"

SCHEDULE = "schedule"
"""Key of config.json that says what changes inside a run; without it, or empty, its sizes are fixed."""

LINE_KEYS = ("step", "compute", "tokens", "wall_s", "device_hours")
WALL_CLOCK_KEYS = frozenset(
    {
        *("wall_s", "device_hours", "learner_device_hours", "sampler_device_hours", "lost_device_hours"),
        *("phase_s", "speed", "redrawn_rollouts"),
    }
)
"""Keys that tell how a run went and not what it found: they may differ between a run and its exact repetition.

`redrawn_rollouts` counts what was sampled again because a sampler was lost; an undisturbed run has 0. Everything else
is reproducible.
"""


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The facts of config.json that curves are grouped by (top-level keys of the file)."""

    group_size: int  # n, rollouts per problem and step.
    problems_per_batch: int  # B_problem, unique problems per step.
    num_steps: int  # M, planned steps.
    problem_set_size: int  # D, unique training problems.
    model_params: int  # number of parameters.
    seed: int  # random seed.


@dataclasses.dataclass(frozen=True)
class Run:
    """One run directory as read: `config` (all of config.json), `facts`, log lines as dicts, and whether it is done."""

    path: pathlib.Path
    config: dict[str, Any]
    facts: RunFacts
    metrics: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    done: bool


def write_atomic(path: str | os.PathLike[str], data: str | bytes | Iterable[bytes]) -> None:
    """Writes `data`, or its parts as they come, to a temporary name beside `path`, syncs it, and renames it over it."""
    path = pathlib.Path(path)
    data = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def user_cache(name: str) -> pathlib.Path | None:
    """A folder of this package in the user's cache directory (XDG Base Directory Specification); None without a home.

    Compiled programs are kept there, and never in a run directory: they are code, and directories are handed on.
    """
    try:
        place = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    except RuntimeError:
        return None
    return place / "isocompute_jax" / name


def check_links(directory: str | os.PathLike[str]) -> None:
    """Holds a directory that is worked in to what lies in it, two levels deep: no link in it may lead out of it.

    Files are appended to, replaced and removed there by name; a directory that was handed on must not have that happen
    to others. The directory itself may be a link, and links from place to place in it stay.

    Raises:
      InputError: names the link, and what to do; or there is no such directory.
    """
    root = os.path.realpath(directory)
    if not os.path.isdir(root):
        raise InputError(f"{directory}: there is no such directory")
    folders = [root]
    for depth in range(2):
        entries = [entry for folder in folders for entry in os.scandir(folder)]
        for entry in entries:
            if entry.is_symlink() and not os.path.realpath(entry.path).startswith(root + os.sep):
                raise InputError(
                    f"{entry.path} is a link to {os.path.realpath(entry.path)}, and files are written and removed in "
                    f"{directory}: bring what it points to there, or let the directory as a whole be a link"
                )
        folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)] if depth == 0 else []


def remove_unfinished(run: str | os.PathLike[str]) -> None:
    """Removes what writers left in a run directory that were killed before they renamed it; nobody writes in it now."""
    run = pathlib.Path(run)
    kept = (CONFIG, METRICS, ROLLOUTS, EVAL, AGREEMENT, HISTORY, MODEL, DONE)
    left = [path for name in kept for path in run.glob(f".{name}.*")] + list((run / EXPORTS).glob(".*"))
    for path in left:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def append_line(path: str | os.PathLike[str], line: dict[str, Any]) -> None:
    """Appends one JSON line. Lines carry `LINE_KEYS`; NaN and infinity are refused because JSON has neither."""
    missing = [key for key in LINE_KEYS if key not in line]
    if missing:
        raise ValueError(f"log line lacks {missing}")
    text = json.dumps(line, allow_nan=False) + "\n"
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def read_lines(path: str | os.PathLike[str], *, partial_last_line: bool = False) -> list[dict[str, Any]]:
    """Reads a JSONL log; a missing file is an empty log.

    Args:
      path: the file.
      partial_last_line: drop an unfinished last line (a writer was killed) in place of raising.

    Raises:
      InputError: a line is not a JSON object; names file and line.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return []
    if not path.is_file():  # reading a pipe would wait for who writes to it
        raise InputError(f"{path}: is no file; remove it")
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            if partial_last_line and number == len(lines):  # no newline after it: the write was cut off
                break
            raise InputError(f"{path}:{number}: not a JSON object ({error}); correct or delete the line") from error
        rows.append(row)
    return rows


def cut_back(path: str | os.PathLike[str], *, step: int) -> dict[str, Any] | None:
    """Keeps the lines of a log up to and including `step`, as they are, and drops the rest (a crash's surplus).

    Returns:
      The last whole line that was dropped; None where there was none.

    Raises:
      InputError: a line is none of a log; names file and line, and nothing is cut.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return None
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    kept = []
    for number, line in enumerate(lines, 1):
        try:
            if json.loads(line)["step"] > step:
                break
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not a line of this log ({error!r}); correct or delete it") from error
        kept.append(line)
    write_atomic(path, b"".join(kept))
    return json.loads(lines[-1]) if len(kept) < len(lines) else None


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads a run directory, finished or not.

    Raises:
      InputError: config.json is missing, is not JSON, or lacks a fact; or a log line is broken.
    """
    path = pathlib.Path(path)
    config_path = path / CONFIG
    try:
        if not config_path.is_file():
            raise FileNotFoundError(config_path)
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is not a run directory: it has no {CONFIG}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{config_path}: not JSON ({error})") from error
    names = [field.name for field in dataclasses.fields(RunFacts)]
    missing = [name for name in names if name not in config]
    if missing:
        raise InputError(f"{config_path}: lacks {', '.join(missing)}; was it written by another program?")
    done = (path / DONE).exists()
    return Run(
        path=path,
        config=config,
        facts=RunFacts(**{name: int(config[name]) for name in names}),
        metrics=read_lines(path / METRICS, partial_last_line=not done),
        evaluations=read_lines(path / EVAL, partial_last_line=not done),
        done=done,
    )


def find_runs(root: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Run directories at or below `root`, sorted by path."""
    root = pathlib.Path(root)
    return sorted(path.parent for path in root.rglob(CONFIG) if (path.parent / EVAL).exists())


def numbers_in(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Name and value of every number of a log's line; those of a group of columns are `GROUP/NAME`.

    Args:
      line: as it was logged; lists, texts and what was not measured are left out.
      prefix: stands before every name.
    """
    for key, value in line.items():
        if isinstance(value, Mapping):
            yield from numbers_in(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)
