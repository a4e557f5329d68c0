"""Run by test_h200_script.py where the compilers are."""

import dataclasses

from benchmarks.h200_cases import cases
from benchmarks.h200_measure import AS_IT_IS, WITHOUT_TRITON, compiled, learner_step
from isocompute_jax import sharding
from isocompute_jax.plan.topology import parse_topology


def peaks(part):
    """Bytes of an H200 that each learner of a part needs, by its name."""
    [device] = parse_topology("h200:1x1").devices()
    mesh = sharding.make_mesh(data=1, fsdp=1, expert=1, tensor=1, devices=[device])
    found = {}
    for case in cases(small=False):
        if case.part == part and case.row_tokens == 8192:  # as many tokens as in one row of 32k
            step = learner_step(dataclasses.replace(case, attention="mosaic"), mesh)
            found[case.name] = compiled(step, AS_IT_IS, WITHOUT_TRITON)["bytes"]
    return found
