"""FLOPs of the matrix products that a compiled program runs, by its text; those of custom kernels are left out."""

import math
import re

from isocompute_jax.plan.hlo import _ARRAY, _runs, parse

_GEMM = re.compile(r'custom_call_target="__cublas\$(?:lt\$)?(?:gemm|matmul)')
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)[\]}]')


def products(text: str, *, microbatches: int) -> float:
    """Of one device: 2 x numbers of the result x what is summed over, times the runs of the loop that it is in.

    Loops whose count is not in the program run `microbatches` times.
    """
    entry, computations = parse(text)
    shapes = {one.name: one.result for body in computations.values() for one in body}
    total = 0.0
    for one, count in _runs(entry, computations, microbatches):
        if one.operation == "dot" or (one.operation == "custom-call" and _GEMM.search(one.rest)):
            left = _sizes(shapes[re.findall(r"%([\w.-]+)", one.rest)[0]])
            contracted = _CONTRACTED.search(one.rest)
            assert contracted is not None, one.rest
            summed = [left[int(dim)] for dim in re.findall(r"\d+", contracted[1])]
            total += 2.0 * math.prod(_sizes(one.result)) * math.prod(summed) * count
    return total


def _sizes(result: str) -> list[int]:
    """Of the first array of a type."""
    found = _ARRAY.search(result)
    assert found is not None, result
    return [int(size) for size in found[2].split(",") if size]
