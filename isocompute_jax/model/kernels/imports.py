"""Kernels are imported before they are chosen: one whose modules do not import counts as not installed.

They reach deep into JAX and into packages that follow it closely, so that a set of versions may install and not fit.
Which exception that ends in is up to whichever module meets it first.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import warnings
from typing import Any

TOKAMAX = "tokamax"

_LOGGER = logging.getLogger(__name__)


@functools.cache
def why_missing(*modules: str) -> str | None:
    """Imports the modules of a kernel, of one package. Why it cannot be used, with the remedy, or None."""
    package = modules[0].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed: pip install 'isocompute-jax[{package}]'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names that will move: where warnings are errors, they are none here
            if package == TOKAMAX:
                _before_tokamax()
            for module in modules:
                importlib.import_module(module)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        return (
            f"{package} is installed and does not import ({type(error).__name__}: {reason}): its versions do not fit "
            "each other; install those of constraints.txt (docs/clusters.md)"
        )
    return None


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning that every trace of a program would repeat."""
    _LOGGER.warning("%s", message)


def _before_tokamax() -> None:
    from absl import flags

    if not flags.FLAGS.is_parsed():  # tokamax reads flags; unparsed, it would parse the caller's command line
        flags.FLAGS.mark_as_parsed()
    give_back_old_names()


RENAMED = {"out_shape": "out_type", "scratch_shapes": "scratch_types"}
"""Arguments of Mosaic's `kernel`, before jax 0.11 and since."""


def give_back_old_names() -> None:
    """Gives back names of Pallas that tokamax 0.0.12 uses and jax 0.11 has changed, so that its kernels compile there.

    Before tokamax is imported; does nothing where jax still has them, or has had them given back.
    """
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
