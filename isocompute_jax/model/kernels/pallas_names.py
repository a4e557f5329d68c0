"""Names of Pallas that tokamax 0.0.12 uses and jax 0.11 has changed, given back: its kernels then compile there too."""

from __future__ import annotations

import inspect
from typing import Any

RENAMED = {"out_shape": "out_type", "scratch_shapes": "scratch_types"}
"""Arguments of Mosaic's `kernel`, before jax 0.11 and since."""


def give_back_old_names() -> None:
    """Before tokamax is imported; does nothing where jax still has them, or has had them given back."""
    from jax.experimental import pallas
    from jax.experimental.pallas import mosaic_gpu, triton

    give_back(pallas, mosaic_gpu, triton)


def give_back(pallas: Any, mosaic_gpu: Any, triton: Any) -> None:
    """The same, of these modules."""
    new_kernel = mosaic_gpu.kernel
    parameters = inspect.signature(new_kernel).parameters
    if "out_type" in parameters and "out_shape" not in parameters:

        def kernel(*arguments: Any, out_shape: Any = None, scratch_shapes: Any = None, **options: Any) -> Any:
            given = {"out_shape": out_shape, "scratch_shapes": scratch_shapes}
            renamed = {RENAMED[name]: value for name, value in given.items() if value is not None}
            return new_kernel(*arguments, **renamed, **options)

        mosaic_gpu.kernel = kernel
    if not hasattr(pallas, "dot"):
        pallas.dot = triton.dot
