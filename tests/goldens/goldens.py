"""What the fit says of recorded, old and foreign sweeps: made, kept and compared.

    python -m tests.goldens.goldens              # makes them all again: goldens.json beside this file
    python -m tests.goldens.goldens NAME ...     # the named ones, and keeps the others

A golden has what a user acts on: of each budget the choice, its verdict and reward and the price of the others; counts
of the data; of a law its parameters. A change that means to move a number makes the goldens again in the same commit,
and says there which moved and why.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from isocompute_jax.fit import BudgetAnswer, SweepResult, analyze
from isocompute_jax.fit import __main__ as command
from isocompute_jax.fit.laws import LawResult, fit_law
from isocompute_jax.fit.plain_data import plain
from isocompute_jax.fit.read import read_curves
from tests.goldens import tables

ROOT = pathlib.Path(__file__).parents[2]
FILE = pathlib.Path(__file__).with_name("goldens.json")
OLD = ROOT / "tests/artefacts/d6f90a3.tar.gz"
TOGETHER = {
    "sizes_of_sets": ("problems_16", "problems_64", "problems_256"),
    "batches": ("batch_2", "problems_64", "batch_32"),
    "base_models": ("problems_64", "base_600", "wide_64"),
}
"""Sweeps that answer a question together."""
COUNTS = (
    "runs", "configurations", "seeds", "evaluations", "evaluations_per_run", "held_out", "equal", "varies", "trend",
    "left_out_rows", "left_out_runs", "only_scheduled",
)  # fmt: skip
"""Facts of the data that are the same on every machine."""
DIGITS = 9
EXACT, ELSEWHERE = 1e-6, 0.01
"""How far rewards, as shares of their range, may be off: on the machine of the goldens, and on others."""

Flags = list[str]
Golden = dict[str, Any]


def cases() -> dict[str, Callable[[pathlib.Path], Flags]]:
    """Name -> what fills a folder and returns the flags of the fit in it."""
    found: dict[str, Callable[[pathlib.Path], Flags]] = {}
    for path in sorted((ROOT / "gallery").glob("*.parquet")):
        found[f"gallery_{path.stem}"] = lambda folder, path=path: _copied(folder, path.stem)
    for name, parts in TOGETHER.items():
        found[f"together_{name}"] = lambda folder, parts=parts: _copied(folder, *parts)
    found["old_sweep"] = _old
    return found | {f"table_{name}": write for name, write in tables.TABLES.items()} | tables.LAWS


def _copied(folder: pathlib.Path, *names: str) -> Flags:
    for name in names:
        shutil.copy(ROOT / f"gallery/{name}.parquet", folder)
    return ["--runs=*.parquet", "--budget=2e4,131072,524288"]


def _old(folder: pathlib.Path) -> Flags:
    """Run directories of an old commit."""
    shutil.unpack_archive(OLD, folder, filter="data")
    return ["--runs=sweep"]


def made(name: str) -> Golden:
    """What the fit says now of what the command reads with these flags, but for pictures and pages."""
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        given = [flag.replace("--runs=", f"--runs={folder}/") for flag in cases()[name](folder)]
        command.VALUES.unparse_flags()
        try:
            command.VALUES(["fit", *given, "--out=none"])
            roots = command.RUNS.value
            if command.ANALYSIS.value == "frontier":
                found = of_sweep(analyze(roots, command.options(), questions=False))
            else:
                curves, _ = read_curves(roots, command.read_options())
                found = of_law(fit_law(curves, command.law_options()))
        finally:
            command.VALUES.unparse_flags()
        return rounded(plain(found))


def of_law(result: LawResult) -> Golden:
    """The parameters of a law, with their intervals."""
    names = ("value", "low", "high", "note")
    return {"parameters": {key: [getattr(of, name) for name in names] for key, of in result.parameters.items()}}


def of_sweep(result: SweepResult) -> Golden:
    """What is kept of a sweep."""
    data = result.data
    return {
        "width": result.options.width,
        "data": {name: getattr(data, name) for name in COUNTS}
        | {"gain": data.gain, "fallen": [each.name for each in data.fallen], "notes": len(data.notes)},
        "asked": [_answer(answer) for answer in result.asked],
        "targets": {name: [_answer(answer) for answer in found.asked] for name, found in result.targets.items()},
    }


def _answer(answer: BudgetAnswer) -> Golden:
    advised = answer.advised
    return {
        "budget": answer.budget,
        "advised": advised.configuration.name,
        "n": advised.configuration.group_size,
        "B": advised.configuration.problems_per_batch,
        "steps": advised.num_steps,
        "stop": advised.stop,
        "rate": answer.learning_rate,
        "verdict": answer.verdict,
        "named": [each.name for each in answer.named],
        "reason": answer.reason,
        "reward": advised.reward,
        "interval95": advised.interval95,
        "run95": advised.run95,
        "cost": {each.configuration.name: each.cost for each in answer.choices[1:]},
    }


def rounded(value: Any) -> Any:
    """Numbers to nine digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def moved(old: Golden, new: Golden, *, same_machine: bool) -> Iterator[str]:
    """Where two goldens are not alike, and how.

    On one machine, whatever is not equal to a millionth of the range. On another, draws come out a little otherwise:
    rewards and prices may be off by 0.01 of the range, another choice be advised that costs no more than that, and a
    verdict become a neighbour of itself (`open` is one of the two others, which are none of each other).
    """
    if same_machine:
        yield from differences(old, new, EXACT * old.get("width", 1.0))
    elif "parameters" in old:
        yield from differences(old, new, ELSEWHERE, relative=ELSEWHERE)
    else:
        slack = ELSEWHERE * old["width"]
        ours, theirs = ({name: each[name] for name in (*COUNTS, "notes")} for each in (old["data"], new["data"]))
        yield from differences(ours, theirs, 0.0, "/data")
        for name in ("asked", "targets"):
            one, other = ({"": each[name]} if name == "asked" else each[name] for each in (old, new))
            for key in one | other:
                for place, (a, b) in enumerate(zip(one.get(key, ()), other.get(key, ()), strict=True)):
                    yield from _answer_moved(a, b, slack, f"/{name}{key}[{place}]")


def _answer_moved(old: Golden, new: Golden, slack: float, at: str) -> Iterator[str]:
    verdicts = {old["verdict"], new["verdict"]}
    if len(verdicts) > 1 and "open" not in verdicts:
        yield f"{at}: {old['verdict']} before, {new['verdict']} now"
    if new["advised"] != old["advised"] and new["cost"].get(old["advised"], math.inf) > slack:
        yield f"{at}: {old['advised']} before, {new['advised']} now"
    yield from differences([old["budget"], old["interval95"]], [new["budget"], new["interval95"]], slack, at)
    before, now = ({each["advised"]: each["reward"]} for each in (old, new))
    before |= {name: old["reward"] - cost for name, cost in old["cost"].items()}
    now |= {name: new["reward"] - cost for name, cost in new["cost"].items()}
    yield from differences(before, now, slack, f"{at}/reward")


def differences(old: Any, new: Any, slack: float, at: str = "", *, relative: float = EXACT) -> Iterator[str]:
    """Where two values are not alike: numbers by more than `slack`, and by more than a share of themselves."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            if key not in old or key not in new:
                yield f"{at}/{key}: only {'now' if key in new else 'before'}"
            else:
                yield from differences(old[key], new[key], slack, f"{at}/{key}", relative=relative)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, slack, f"{at}[{i}]", relative=relative)
    elif isinstance(old, int | float) and isinstance(new, int | float) and not isinstance(old, bool):
        if not (math.isclose(old, new, rel_tol=relative, abs_tol=slack) or (old != old and new != new)):
            yield f"{at}: {old} before, {new} now"
    elif old != new:
        yield f"{at}: {str(old)[:120]} before, {str(new)[:120]} now"


def machine() -> str:
    """What the last digits depend on: the processor, and who compiles and adds up on it."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    about = {line for line in lines if re.match(r"(model name|cpu family|model)\s*:", line)}
    words = {word for line in lines if line.startswith("flags") for word in line.split()}
    vectors = sorted(word for word in words if re.match(r"avx|fma|amx", word))  # one name may be several processors
    processor = [re.sub(r"\s*:", "", line) for line in sorted(about)]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jaxlib", "numpy", "scipy")]
    return ", ".join((*processor, *vectors, *versions, os.environ.get("XLA_FLAGS", "")))


def kept() -> dict[str, Any]:
    """Name -> golden; and `machine`, that of the goldens."""
    return json.loads(FILE.read_text())


def text_of(every: dict[str, Any]) -> str:
    """One line for each answer, so that a change of advice is a line of a diff."""
    lines = json.dumps(every, indent=1)
    return re.sub(r"\{[^{}]*(\{[^{}]*\})?[^{}]*\}", lambda one: re.sub(r"\s*\n\s*", " ", one[0]), lines) + "\n"


def main(names: list[str]) -> None:
    every = kept() if FILE.exists() and names else {}
    if every and every["machine"] != machine():
        sys.exit("These goldens were made on another machine: make all, without names.")
    for name in names or cases():
        every[name] = made(name)
        print(name, len(json.dumps(every[name])), flush=True)
        known = {each: every[each] for each in cases() if each in every}
        FILE.write_text(text_of(known | {"machine": machine()}))
    print(f"{FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    import tests.conftest  # noqa: F401  (compiles as tests do: the last digits depend on it)

    main(sys.argv[1:])
