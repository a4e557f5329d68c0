r"""`python -m isocompute_jax.check`: one look at a model, its problems and its reward before a run is paid for.

    python -m isocompute_jax.check --model=runs/study-quick/base --problems=runs/study-quick/problems.jsonl
    python -m isocompute_jax.check --model=models/mine --problems=problems.jsonl --reward=math --max_tokens=1024
    python -m isocompute_jax.check --config=configs/start.py --config.model=models/mine \
        --config.train_set=problems.jsonl --config.reward=math --config.service.endpoints=node1:50051

Draws 64 rollouts, in this process or from the config's servers, and trains nothing. Each line of its page says fine,
look or wrong, what was found, and the field to set (docs/pilot.md); --out is the same page with answers to judge. The
exit code is 2, that of bad input, if any line is wrong.
"""

from __future__ import annotations

import pathlib
import tempfile

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.records.errors import InputError, set_by_flags
from isocompute_jax.records.printing import say

with app.imports():
    from isocompute_jax.pilot import run_flags

MEASURED = flags.DEFINE_integer("measured", 8, "Problems that rollouts are drawn of.", lower_bound=1)
SAMPLES = flags.DEFINE_integer("samples", 8, "Rollouts of each of them.", lower_bound=2)
OUT = flags.DEFINE_string("out", "check.html", "The page as a file.")
flags.adopt_module_key_flags(run_flags)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.experiment.curation.measure import check_environment
    from isocompute_jax.pilot.check import look
    from isocompute_jax.pilot.lines import lines, page_of, text_of
    from isocompute_jax.records.run_files import write_atomic

    config = run_flags.config_of_flags()
    check_environment(config)
    check_driver_for_jax()
    use_training_cache()
    with tempfile.TemporaryDirectory() as directory, set_by_flags({} if run_flags.CONFIG.value else run_flags.FIELDS):
        record = pathlib.Path(directory) / "measured"
        counts = {"problems": MEASURED.value, "samples": SAMPLES.value}
        facts = look(config, record, **counts, stops=False, left_open=run_flags.left_open())
        found = lines(facts)
    write_atomic(pathlib.Path(OUT.value), page_of(facts, found))
    say(text_of(found))
    wrong = list(dict.fromkeys(line.what for line in found if line.state == "wrong"))
    if wrong:
        raise InputError(f"wrong: {', '.join(wrong)}; what to set stands there, and answers to judge in {OUT.value}")
    say(f"nothing is wrong; answers to judge are in {OUT.value}")


if __name__ == "__main__":
    app.run(main)
