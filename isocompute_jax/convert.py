r"""`python -m isocompute_jax.convert`: any file of problems, as a problem set that runs and curation read.

    python -m isocompute_jax.convert --source=dapo-math-17k.parquet --adapter=dapo_math_17k --out=dapo.jsonl
    python -m isocompute_jax.convert --source=mine.csv --columns=question:prompt,gold:answer --task=numeric \
        --out=mine.jsonl
    python -m isocompute_jax.convert --source=mine.jsonl --task=exact --show=3

Sources are .jsonl, .json, .csv and .parquet files, or directories of them. Rows that repeat an earlier one are dropped.
`--show` prints problems in place of writing them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from absl import flags

from isocompute_jax import app
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import printable, say
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.convert import ConvertOptions

SOURCE = flags.DEFINE_list("source", None, "Files or directories to read, one after the other.")
OUT = flags.DEFINE_string("out", None, "Problem set to write, .jsonl or .parquet.")
SHOW = flags.DEFINE_integer("show", 0, "Print the first so many problems, and write nothing.", lower_bound=0)
define_flags(ConvertOptions)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.tasks import write_problems
    from isocompute_jax.tasks.convert import convert

    sources = app.needed(SOURCE, "give the files to read")
    if bool(OUT.value) == bool(SHOW.value):
        raise InputError("give either --out=FILE.jsonl, or --show=3 to see what would be written")
    problems = convert([pathlib.Path(source) for source in sources], from_flags(ConvertOptions))
    if OUT.value:
        write_problems(OUT.value, problems)
        say(f"{len(problems)} problems written to {OUT.value}")
    else:
        say(listing(problems[: SHOW.value]))
        say(f"{len(problems)} problems in all")


def listing(problems: Sequence[Problem]) -> str:
    """Problems as they were read; long columns are cut."""
    lines = []
    for problem in problems:
        lines.append(f"{problem.id} (task {problem.task}), answer: {shortened(problem.answer)}")
        lines += [f"  {name}: {value:g}" for name, value in problem.measured.items()]
        lines += [f"  {name}: {shortened(str(value))}" for name, value in problem.extra.items()]
        lines += [*(f"  | {line}" for line in problem.text.splitlines()), ""]
    return "\n".join(map(printable, lines))


def shortened(text: str, longest: int = 200) -> str:
    """On one line, of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}... ({len(text)} characters)"


if __name__ == "__main__":
    app.run(main)
