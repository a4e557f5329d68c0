r"""`python -m isocompute_jax.evaluate`: avg@k and pass@k of a model on held-out problems, with intervals.

    python -m isocompute_jax.evaluate --model=base --problems=test.jsonl --out=scores/base --samples=8 --k=1,4
    python -m isocompute_jax.evaluate --model=runs/mine/model --problems=test.jsonl --out=scores/mine --samples=8 \
        --resolved_config=runs/mine/config.json --compare=scores/base

Flags of sampling, rewards, prompts and servers are those of curate; --resolved_config takes them from a run. Every
rollout is recorded as it comes: the same command goes on after a kill, and more --samples draw the new ones alone.
--compare names the --out of another evaluation of the same problems. Published benchmarks become problem files by
`python -m isocompute_jax.convert` (docs/problems.md).
"""

from __future__ import annotations

import dataclasses

from absl import flags

from isocompute_jax import app, curate
from isocompute_jax.compiling import use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.options import from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

OF_SETS = ("sets", "set", "mixture", "train_size", "validation_size", "show_prompts")
"""Flags of curate that mean nothing here: nothing is cut."""

K = flags.DEFINE_list("k", ["1"], "Of pass@k, one or several.")
COMPARE = flags.DEFINE_string("compare", None, "The --out of another evaluation, on the same problems.")
for flag in flags.FLAGS.get_key_flags_for_module(curate):
    if flag.name not in OF_SETS:
        flags.declare_key_flag(flag.name)


def main() -> None:
    """Flags -> one call, and its numbers."""
    from isocompute_jax.devices import keep_freed_memory
    from isocompute_jax.experiment.curation import evaluate
    from isocompute_jax.experiment.curation.measure import naming_flags
    from isocompute_jax.tasks import ProblemFile

    if given := [name for name in OF_SETS if flags.FLAGS[name].present]:
        raise InputError(f"--{given[0]} is for curate, which cuts sets; evaluate measures all problems: leave it out")
    if wrong := [k for k in K.value or [] if not k.isdecimal()]:
        raise InputError(f"--k={wrong[0]}: write numbers with commas between them, such as --k=1,4,16")
    ks = [int(k) for k in K.value or []]
    path, out = curate.needed(curate.PROBLEMS), curate.needed(curate.OUT)
    theirs = evaluate.read_evaluation(COMPARE.value) if COMPARE.value else None
    with naming_flags():
        run, model = curate.RESOLVED.value, curate.needed(curate.MODEL)
        source = curate.source_of_a_run(run, model=model) if run else curate.source_of_flags()
        problems = ProblemFile(path, grader_name=source.reward.name_for)
        config = dataclasses.replace(from_flags(CurationConfig, ranges={}, mixtures={}), sets=())
        evaluate.check_ks(ks, config.samples)
        check_driver_for_jax()
        keep_freed_memory()
        use_training_cache(curate.COMPILE_CACHE.value)
        solved = evaluate.evaluate(problems, out, source=source, config=config)
    say(f"{source.model}: {len(solved)} problems, {config.samples} samples of each; in brackets 95% intervals")
    for name, value in evaluate.scores(solved, config.samples, ks).items():
        say(f"{name:>10}  {value}")
    if theirs is not None:
        found = evaluate.compare(evaluate.read_evaluation(out), theirs)
        say(f"beside {theirs['model']} on the {found.problems} problems of both: {found.ours} against {found.theirs},")
        say(f"difference {found.difference}, paired")


if __name__ == "__main__":
    app.run(main)
