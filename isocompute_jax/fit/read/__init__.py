"""Learning curves in: run directories, tables and logs of any framework become one `RunCurve` per run.

A table in long form has the columns `run, group_size, problems_per_batch, compute, <metric...>` and optionally `step,
tokens, gpu_hours, seed, eval_set, problem_set_size, model_params, model, train_set, learning_rate`, and settings of any
usual name (`layout` has these, and the wide forms). What is no such table is made one (`forms`), and the reward is
chosen where none is named (`rewards`). Rows without the metric are log lines of something else. A bad row is reported
with its file and line and left out; the rest is read.
"""

from isocompute_jax.fit.read.layout import WITH_REPLACEMENT
from isocompute_jax.fit.read.notices import Notes
from isocompute_jax.fit.read.read_options import ReadOptions, parse_columns
from isocompute_jax.fit.read.reader import TRAIN_REWARD, read_curves
from isocompute_jax.fit.read.run_curve import MAX_POINTS, RunCurve
from isocompute_jax.fit.read.tables import MemoryTable, memory_table

__all__ = [
    "MAX_POINTS",
    "TRAIN_REWARD",
    "WITH_REPLACEMENT",
    "MemoryTable",
    "Notes",
    "ReadOptions",
    "RunCurve",
    "memory_table",
    "parse_columns",
    "read_curves",
]
