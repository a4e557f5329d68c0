"""`benchmarks/h200.sh`: what one H200 (or another accelerator) does with real shapes, measured part by part.

    benchmarks/h200.sh --wheels=DIR --out=DIR                          # all of it: about 25 minutes
    benchmarks/h200.sh --parts=rate,attention,learner_1.5b --out=DIR   # each of these in less than 10
    benchmarks/h200.sh --parts=learner_7b --out=DIR
    benchmarks/h200.sh --parts=torch,decode --out=DIR
    benchmarks/h200.sh --small                                         # every part in tiny, on a CPU

It runs on the JAX it finds, without network, configs or checkpoints: weights are random. Each measurement is a process
of its own, so that one that fails costs no other; what it finds is a line of OUT/results.jsonl at once, and tables come
at the end (`--parts=` with nothing prints those of an earlier call). `--budget_s` bounds the call: what does not fit in
it is skipped, and said to be.

- rate: bfloat16 products of 8,192 x 8,192, which MFU divides by (measured again in each process).
- attention: one layer's, forward and backward, by each kernel. Kernels that are not there are said first, and why.
- learner_1.5b, learner_7b: whole updates of Qwen2.5 shapes on packed rows: MFU, peak memory beside what the compiler
  says, with autotuning and without it, time to compile. The first kernel of attention that works is taken.
- torch: the same on transformers and torch, where they are (`benchmarks.h200_torch` says how).
- decode: tokens/s of the slots engine.
"""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

from absl import flags

from benchmarks.h200_cases import KERNELS, Case, cases
from benchmarks.h200_runs import Results, measured, missing_kernels, versions
from benchmarks.h200_tables import tables
from benchmarks.shared import names
from isocompute_jax import app

PARTS = ("rate", "attention", "learner_1.5b", "learner_7b", "torch", "decode")
RESULTS = "results.jsonl"

PARTS_FLAG = flags.DEFINE_list("parts", list(PARTS), f"Some of {', '.join(PARTS)}; empty: tables of what is in --out.")
OUT = flags.DEFINE_string("out", "h200", "Folder of the results.")
SMALL = flags.DEFINE_bool("small", False, "Tiny shapes, to try the script.")
ATTENTION = flags.DEFINE_list("attention", list(KERNELS), "Kernels that learners try, in this order.")
BUDGET = flags.DEFINE_float("budget_s", 3600.0, "Seconds for all of it.", 1)
LIMIT = flags.DEFINE_float("limit_s", 400.0, "Seconds for one measurement.", 1)
ONE = flags.DEFINE_string("one", None, "Measure this case here (JSON), and print what is found.")


def main() -> None:
    """Flags -> measurements and tables, or one measurement."""
    if ONE.value is not None:
        print(json.dumps(_one(Case(**json.loads(ONE.value)))))
        return
    parts, kernels = names(PARTS_FLAG, PARTS), names(ATTENTION, KERNELS)
    out = pathlib.Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out / RESULTS)
    if parts:
        results.add({"kind": "versions", **versions()})
        for line in missing_kernels(kernels):
            results.add(line)
    deadline = time.monotonic() + BUDGET.value
    for case in cases(small=SMALL.value):
        if case.part in parts:
            for found in measured(case, results, kernels, deadline=deadline, limit_s=LIMIT.value):
                results.add(found)
    print("\n".join(tables(results.lines)))


def _one(case: Case) -> dict[str, Any]:
    if case.kind == "torch":
        from benchmarks.h200_torch import torch_of

        return torch_of(case)
    from benchmarks import h200_measure

    return h200_measure.measure(case)


if __name__ == "__main__":
    app.run(main)
