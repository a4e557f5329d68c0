r"""`python -m research.gallery`: keep the learning curves of finished runs with the project, and draw them.

    python -m research.gallery record --sweep=runs/study-full/runs/hard
    python -m research.gallery record --sweep=runs/sweep --gallery=gallery --name=tail
    python -m research.gallery build --docs=docs
    python -m research.gallery calibrate --sweeps=problems_64,problems_256

`record` appends to gallery/NAME.parquet (NAME is that of the sweep's directory) what is not in it yet; runs that are
not done are left for the next time. `python -m isocompute_jax.fit --runs=gallery/NAME.parquet` fits the curves.
`build` writes findings.md, one_run.md, referee.md and llm.md of docs/ and their pictures anew, from what was recorded.
`calibrate` prints the constants under which theory errs least on some sweeps, from its present ones on.
"""

from __future__ import annotations

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

SWEEP = flags.DEFINE_string("sweep", None, "Directory of a sweep, or of one slice of a study.")
GALLERY = flags.DEFINE_string("gallery", "gallery", "Directory of the gallery.")
NAME = flags.DEFINE_string("name", "", "Name in the gallery; that of the sweep's directory if empty.")
DOCS = flags.DEFINE_string("docs", "docs", "Directory that `build` writes its pages to.")
SWEEPS = flags.DEFINE_list("sweeps", [], "Sweeps of the gallery to calibrate theory on.")
ROUNDS = flags.DEFINE_integer("rounds", 4, "Steps of the calibration, some twenty seconds each.", lower_bound=1)
RUNS = flags.DEFINE_integer("runs", 8, "Simulated runs of each n in the calibration.", lower_bound=2)

RECORD, BUILD, CALIBRATE = ACTIONS = ("record", "build", "calibrate")


def main(action: str) -> None:
    """Flags -> one call."""
    if action == RECORD:
        record_sweep()
    elif action == BUILD:
        build_pages()
    elif action == CALIBRATE:
        calibrate_theory()
    else:
        raise InputError(
            f"say what to do: `python -m research.gallery {RECORD} --sweep=DIR`, `{BUILD}` or `{CALIBRATE}`"
        )


def record_sweep() -> None:
    """Keeps the curves of a sweep's finished runs."""
    from research.record import record

    sweep = app.needed(SWEEP, "give the directory of the sweep whose runs to record")
    found = list(record(sweep, GALLERY.value, name=NAME.value).values())
    added, known, unfinished = (found.count(what) for what in ("added", "known", "unfinished"))
    say(f"{added} runs recorded, {known} there already, {unfinished} not done yet")


def build_pages() -> None:
    """Writes the pages of what was found out."""
    from research import findings, llm, one_run, referee

    for page in (findings, one_run, referee, llm):
        say(page.build(GALLERY.value, DOCS.value))


def calibrate_theory() -> None:
    """Prints constants and their error as the solver goes."""
    from isocompute_jax.theory.forecast import EMBEDDED
    from isocompute_jax.theory.runs import Constants
    from research.calibrate import SEARCHED, calibrated, measured
    from research.record import SUFFIX, read_sweep

    names = app.needed(SWEEPS, "name the sweeps to calibrate on, by commas")
    sweeps = [measured(read_sweep(f"{GALLERY.value}/{name}{SUFFIX}"), points=9, runs=RUNS.value) for name in names]

    def progress(constants: Constants, error: float) -> None:
        values = "  ".join(f"{name} {getattr(constants, name):.4g}" for name in SEARCHED)
        say(f"error {error:.3f} in log-odds: {values}", flush=True)

    calibrated(sweeps, EMBEDDED, rounds=ROUNDS.value, progress=progress)


if __name__ == "__main__":
    app.run(main, actions=ACTIONS)
