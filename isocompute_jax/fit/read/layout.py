"""How a table is laid out: which of its columns are ours, and whether runs stand below each other or side by side.

Long form has a row per evaluation of a run. Two wide forms become long on the way in:

    Step, NAME - METRIC, NAME - METRIC__MIN, NAME - METRIC__MAX, ...   W&B's export of a panel
    Step, NAME, NAME, ...                                              with `--columns=*:METRIC`

A column of a wide table whose header is one of ours, renamed or not, is shared by its runs (`step`, `compute`, ...).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.read_options import FACTS, RATE, ReadOptions
from isocompute_jax.fit.read.run_curve import UNITS
from isocompute_jax.fit.read.tables import Table, TableError
from isocompute_jax.records.identity import SCHEDULE

SEPARATOR = " - "
EVERY_OTHER = "*"
LABELS = ("model", "train_set", SCHEDULE)
"""Columns of words that are a part of a run's identity, as the fields of these names in config.json are."""
OURS = ("run", "eval_set", *LABELS, *FACTS, "compute", "step", "tokens", "gpu_hours", RATE)
ALIASES = {
    "run": ("run_name", "exp_name", "experiment_name", "trainer.experiment_name", "run_id", "Name"),
    "group_size": (
        "actor_rollout_ref.rollout.n", "rollout.n", "num_generations", "rollouts_per_example",
        "orchestrator.rollouts_per_example", "orchestrator.group_size", "num_samples_per_prompt_rollout",
        "n_samples_per_prompt", "generator.n_samples_per_prompt", "num_generations_per_prompt",
        "grpo.num_generations_per_prompt", "gconfig.n_samples", "num_return_sequences_in_group", "rollout_n",
        "rollouts_per_prompt", "rollouts_per_problem", "samples_per_prompt", "generations_per_prompt",
    ),
    "problems_per_batch": (
        "data.train_batch_size", "num_unique_prompts_rollout", "num_prompts_per_step", "grpo.num_prompts_per_step",
        "groups_per_batch", "prompts_per_batch", "prompts_per_step", "problems_per_step",
    ),
    "seed": ("data.seed", "trainer.seed", "random_seed"),
    "step": (
        "Step", "training_step", "global_step", "train/global_step", "training/global_step", "trainer/global_step",
        "iteration", "iter", "steps", "Steps",
    ),
    "gpu_hours": ("device_hours",),
    RATE: ("actor/lr", "data.actor/lr", "train/learning_rate", "optim/lr", "lr"),
}  # fmt: skip
"""Other names for a column of ours, used where it is neither present nor renamed. Not `_step`: it counts log calls.

`training_step` comes before `global_step`: open-instruct, which has both, calls rollouts the second. Sizes and rates
are those of verl (W&B and its files), TRL, prime-rl, open-instruct, OpenRLHF, SkyRL, NeMo-RL, AReaL, ROLL and tinker's
cookbook. `batch_size` and `train_batch_size` alone are of several meanings, and none of them.
"""
FACT_ALIASES = (*ALIASES["group_size"], *ALIASES["problems_per_batch"], *ALIASES["seed"])
"""Names of the facts that a command line gives."""
KNOWN = {*OURS, *(each for given in ALIASES.values() for each in given)}
PREFIX = re.compile(r"^(?:config|args|params|hparams|data)[./]")
"""What some programs write before the names of all settings, or of all that they log."""

SETTINGS = frozenset({
    "temperature", "top_p", "top_k", "loss", "loss_type", "loss_fn", "algorithm", "adv_estimator", "advantage",
    "optimizer", "lr_scheduler_type", "warmup_steps", "weight_decay", "beta", "kl", "kl_coef", "kl_coeff",
    "kl_beta", "kl_loss_coef", "kl_penalty", "entropy", "entropy_coef", "entropy_coeff", "entropy_bonus", "clip",
    "clip_low", "clip_high", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_range", "cliprange",
    "epsilon", "epsilon_low", "epsilon_high", "eps_clip", "batch_size", "train_batch_size", "rollout_batch_size",
    "global_batch_size", "mini_batch_size", "minibatch_size", "ppo_mini_batch_size", "ppo_epochs", "num_iterations",
    "updates_per_step", "max_tokens", "max_new_tokens", "max_response_length", "max_completion_length", "lora_rank",
    "dtype", "dataset",
})  # fmt: skip
"""Last parts of the names of columns that are settings of a run, where they stay the same within every run."""
MEASURED = frozenset({"loss", "kl", "entropy", "clip_ratio", "epsilon", "advantage"})
"""Those that some programs measure, too."""

REPLACED = re.compile(r"((?:best|worst|maj)@\d+)/mean$")
"""Columns of verl that a bootstrap of k draws with replacement gives ..."""
WITH_REPLACEMENT = " (with replacement, verl)"
"""... and what is added to their names."""
SAMPLES = 500
"""Rows of a run that W&B's history() samples where nobody asks for another number."""
MAX_LISTED = 12
NEAR = 0.5
"""How alike a name must be to one of ours for a flag to propose it."""

Columns = Mapping[str, str]
"""Header -> our name."""


def in_long_form(table: Table, options: ReadOptions, notices: Notices) -> Table:
    """The table with a row per evaluation of a run, under our names; its other columns keep theirs.

    Raises:
      TableError: it lacks the metric, or what tells compute.
    """
    shared, runs = _plan(table.headers, options)
    ours = {*shared.values(), *(name for own in runs.values() for name in own.values())}
    unit = UNITS[options.compute]
    if len(table.lines) and unit not in ours and not (unit == "compute" and "step" in ours):
        free = [name for name in _numeric(table) if name not in shared]
        ends = "; its runs have a row each: --compute=steps compares their ends" * one_row_a_run(table, shared)
        raise TableError(_missing_axis(free, ours, options) + ends)
    if not runs:
        taken = {"", *shared, *shared.values()}
        shared = shared | {name: name for name in table.headers if name not in taken}
    used = [*shared, *(name for own in runs.values() for name in own)]
    twice = [name for name in dict.fromkeys(used) if table.headers.count(name) > 1]
    wrong = [name for name in twice if name in table.differing and shared.get(name) in ("run", *UNITS.values(), *FACTS)]
    if wrong:
        raise TableError(
            f"its header has {wrong[0]} {table.headers.count(wrong[0])} times, with other cells each; rename those "
            f"that are not the {shared[wrong[0]]}"
        )
    places = (f"{table.path}: its header has {name} {table.headers.count(name)} times" for name in twice)
    if twice:
        notices.changed("column", "given twice, and read where it comes first", places, count=len(twice), finding=True)
    long = dataclasses.replace(table, columns=_renamed(table, _apart(table, shared, options, notices)))
    if any(ours == "run" and theirs not in ("run", *options.columns) for theirs, ours in shared.items()):
        long = _with_seeds(long)
    remark_on_wandb(table, shared, runs, notices)
    if not runs or not len(table.lines):
        return long
    return _unpivot(long, {run: _renamed(table, own) for run, own in runs.items()}, options.metric)


def has_metric(table: Table, options: ReadOptions) -> bool:
    """Whether a table has the metric, in long form or in a wide one."""
    shared, runs = _plan(table.headers, options)
    return options.metric in shared.values() or bool(runs)


def _plan(headers: Sequence[str], options: ReadOptions) -> tuple[dict[str, str], Mapping[str, Columns]]:
    """Columns in long form, and of a wide table the columns of each run; none of a table in long form."""
    shared = shared_headers(headers, options)
    others = [name for name in dict.fromkeys(headers) if name and name not in shared]
    if options.metric in shared.values():
        return shared, {}
    if EVERY_OTHER in options.columns:
        others = [name for name in others if not name.endswith(("__MIN", "__MAX"))]
        return shared, {name: {name: options.columns[EVERY_OTHER]} for name in others}
    runs: dict[str, dict[str, str]] = {}
    rates = dict.fromkeys(ALIASES[RATE], RATE)
    names = {options.metric: options.metric, **{name: name for name in OURS}, **rates, **options.columns}
    for header in others:
        theirs = next((name for name in names if header.endswith(f"{SEPARATOR}{name}")), None)
        if theirs is not None:
            run = header.removesuffix(f"{SEPARATOR}{theirs}")
            runs.setdefault(run, {})[header] = names[theirs]
    return shared, {run: own for run, own in runs.items() if options.metric in own.values()}


def shared_headers(headers: Sequence[str], options: ReadOptions) -> dict[str, str]:
    """The headers that are ours: renamed columns first, then those that have our names, then `ALIASES`."""
    present = {plain: header for header in reversed(headers) for plain in reversed(_plain(header))}
    present |= {header: header for header in headers}
    found: dict[str, str] = {}
    for theirs, ours in options.columns.items():
        if theirs in headers and ours not in found.values():
            found[theirs] = ours
    for name in (*OURS, options.metric):
        choices = (name, *ALIASES.get(name, ()))
        theirs = next((present[each] for each in choices if each in present and present[each] not in found), None)
        if theirs is not None and name not in found.values():
            found[theirs] = name
    return found


def _numeric(table: Table) -> list[str]:
    """Headers of the columns that hold a number somewhere."""
    return [name for name, column in table.columns.items() if name and np.isfinite(cells.numbers(column)).any()]


def is_ours(header: str) -> bool:
    """Whether a column of this name says where a row stands, or what run it is of."""
    return bool({header, *_plain(header)} & KNOWN) or is_setting(header)


def _plain(header: str) -> tuple[str, str]:
    """A header without what some write before it, and as we would write it."""
    bare = PREFIX.sub("", header)
    return bare, re.sub(r"[ _]+", "_", bare.strip().lower())


def is_setting(header: str) -> bool:
    """Whether a column of this name is a setting, if it stays the same within every run."""
    return re.split(r"[./]", header)[-1].lower() in SETTINGS


def is_measured(header: str) -> bool:
    """Whether a column that is named like a setting may hold what was measured."""
    return re.split(r"[./]", header)[-1].lower() in MEASURED


def _missing_axis(free: Sequence[str], ours: set[str], options: ReadOptions) -> str:
    """What tells compute is not there; another unit that is, or the columns that may be meant."""
    name = UNITS[options.compute]
    wanted = f"{name} nor step" if name == "compute" else name
    flag = f" (--compute={options.compute})"
    other = next((unit for unit, column in UNITS.items() if column in ours), None)
    if other is not None:
        return f"no column {wanted}{flag}. It has {UNITS[other]}: --compute={other} counts in that"
    return f"no column {wanted}{flag}. " + _choices(free, "step" if name == "compute" else name, options)


def _choices(numbers: Sequence[str], ours: str, options: ReadOptions) -> str:
    """The columns that may be meant, those of the most similar names first, and the flag that says so."""
    free = [name for name in dict.fromkeys(numbers) if name not in FACTS and name not in options.columns]
    if not free:
        return "The table has no other column with numbers"
    ranked = sorted(free, key=lambda name: -_nearness(name, ours))
    more = f" and {len(ranked) - MAX_LISTED} more" if len(ranked) > MAX_LISTED else ""
    near = ranked[0] if _nearness(ranked[0], ours) >= NEAR else "THEIRS"
    flag = f"{'e.g.' if near == ranked[0] else 'by'} --columns={near}:{ours}"
    return f"Its columns with numbers are {', '.join(ranked[:MAX_LISTED])}{more}; say which one is meant, {flag}"


def _nearness(theirs: str, ours: str) -> float:
    """How alike two names are, 0..1: the better of the whole name and any part of it between slashes."""
    parts = [theirs, *theirs.split("/")]
    return max(difflib.SequenceMatcher(None, part.lower(), ours.lower()).ratio() for part in parts)


def _unpivot(shared: Table, runs: Mapping[str, Mapping[str, cells.Column]], metric: str) -> Table:
    """The rows of all runs that have the metric, one run below the other, with the run's name in each."""
    count = len(shared.lines)
    nothing = pa.chunked_array([pa.nulls(count)])
    names = dict.fromkeys(name for own in runs.values() for name in own)
    columns = {name: cells.stack([own.get(name, nothing) for own in runs.values()]) for name in names}
    given = np.flatnonzero(~cells.blank(columns[metric]))
    run, row = np.divmod(given, max(count, 1))
    own = {name: cells.take(column, given) for name, column in columns.items()}
    below = {name: cells.take(column, row) for name, column in shared.columns.items()}
    columns = below | own | {"run": pa.chunked_array([pa.array(list(runs), pa.string()).take(pa.array(run))])}
    return dataclasses.replace(shared, lines=shared.lines[row], columns=columns)


def _with_seeds(table: Table) -> Table:
    """Runs whose name, by another name of its column, is one for several seeds are told apart by these."""
    if "seed" not in table.columns:
        return table
    codes, names = cells.distinct(table.columns["run"])
    ids, seeds = cells.distinct(table.columns["seed"])
    several = np.array([len(set(ids[codes == run])) > 1 for run in range(len(names))], dtype=bool)
    pairs = zip(codes.tolist(), ids.tolist(), strict=True)
    runs = [
        None if run < 0 else f"{names[run]}, seed={seeds[seed]}" if seed >= 0 and several[run] else names[run]
        for run, seed in pairs
    ]
    columns = table.columns | {"run": cells.column_of(runs)} if several.any() else table.columns
    return dataclasses.replace(table, columns=columns)


def _apart(table: Table, shared: Columns, options: ReadOptions, notices: Notices) -> Columns:
    """The columns, with verl's best of k apart from ours: it is drawn with replacement, where 1 of 4 gives 0.684."""
    own = {name: REPLACED.search(name) for name in shared}
    found = {name: match[1] + WITH_REPLACEMENT for name, match in own.items() if match}
    places = [f"{name} of {table.path}" for name in found if shared[name] != name or name == options.metric]
    if places:
        what = "drawn with replacement by verl, and not our best@k"
        notices.changed("column", what, places, count=len(places))
    return {name: ours if ours == options.metric else found.get(name, ours) for name, ours in shared.items()}


def remark_on_wandb(table: Table, shared: Columns, runs: Mapping[str, Columns], notices: Notices) -> None:
    """Says where W&B thinned out what it gave: means of buckets of steps, and samples of a history."""
    buckets = [
        header
        for own in runs.values()
        for header in own
        if {f"{header}__MIN", f"{header}__MAX"} <= {*table.columns} and _have_buckets(table, header)
    ]
    what = "averaged by W&B over buckets of steps (scan_history() has every evaluation)"
    notices.changed("column", what, (f"{header} of {table.path}" for header in buckets), count=len(buckets))
    run = next((theirs for theirs, ours in shared.items() if ours == "run"), None)
    if "_step" not in table.columns or run is None:
        return
    codes, names = cells.distinct(table.columns[run])
    sampled = [names[i] for i in np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(names)) == SAMPLES)]
    what = f"given {SAMPLES} rows, as many as W&B's history() samples (scan_history() has all)"
    notices.changed("run", what, (f"{name} of {table.path}" for name in sampled), count=len(sampled))


def _have_buckets(table: Table, header: str) -> bool:
    least, most = (cells.numbers(table.columns[f"{header}__{end}"]) for end in ("MIN", "MAX"))
    return bool(np.any(least < most))


def one_row_a_run(table: Table, shared: Columns) -> bool:
    """Whether rows are of runs of their own, as far as a table says it; a name in ten may be of two."""
    run = next((theirs for theirs, ours in shared.items() if ours == "run"), None)
    if run is None:
        return not {*UNITS.values()} & {*shared.values()} and bool({*FACTS, *LABELS} & {*shared.values()})
    return len(cells.distinct(table.columns[run])[1]) >= 0.9 * len(table.lines)


def _renamed(table: Table, names: Columns) -> dict[str, cells.Column]:
    return {ours: table.columns[theirs] for theirs, ours in names.items() if theirs in table.columns}
