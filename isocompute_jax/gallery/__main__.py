r"""`python -m isocompute_jax.gallery`: keep the learning curves of finished runs with the project, and draw them.

    python -m isocompute_jax.gallery record --sweep=runs/study-full/runs/hard
    python -m isocompute_jax.gallery record --sweep=runs/sweep --gallery=gallery --name=tail
    python -m isocompute_jax.gallery build --docs=docs

`record` appends to gallery/NAME.parquet (NAME is that of the sweep's directory) what is not in it yet; runs that are
not done are left for the next time. `python -m isocompute_jax.fit --runs=gallery/NAME.parquet` fits the curves.
`build` writes docs/findings.md and its pictures anew, from what was recorded.
"""

from __future__ import annotations

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError

SWEEP = flags.DEFINE_string("sweep", None, "Directory of a sweep, or of one slice of a study.")
GALLERY = flags.DEFINE_string("gallery", "gallery", "Directory of the gallery.")
NAME = flags.DEFINE_string("name", "", "Name in the gallery; that of the sweep's directory if empty.")
DOCS = flags.DEFINE_string("docs", "docs", "Directory that `build` writes findings.md to.")

RECORD, BUILD = ACTIONS = ("record", "build")


def main(action: str) -> None:
    """Flags -> one call."""
    from isocompute_jax.gallery import record

    if action == BUILD:
        from isocompute_jax.gallery.page import build

        print(build(GALLERY.value, DOCS.value))
        return
    if action != RECORD:
        raise InputError(f"say what to do: `python -m isocompute_jax.gallery {RECORD} --sweep=DIR`, or `{BUILD}`")
    if not SWEEP.value:
        raise InputError("--sweep is missing: give the directory of the sweep whose runs to record")
    found = record(SWEEP.value, GALLERY.value, name=NAME.value)
    print(f"{len(found.added)} runs recorded, {len(found.known)} there already, {len(found.unfinished)} not done yet")


if __name__ == "__main__":
    app.run(main, actions=ACTIONS)
