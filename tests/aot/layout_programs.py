"""Run by test_layouts.py where the compilers are."""

import dataclasses
import importlib.util

from isocompute_jax.experiment.config import override
from isocompute_jax.model.flops import Work, step_flops
from isocompute_jax.plan.dry_run import dry_run
from isocompute_jax.plan.report import figures
from isocompute_jax.plan.topology import parse_topology
from tests.aot.products import products


def figures_of(path):
    """Those of the plan, and `products`: what the program multiplies over what its remat policy implies."""
    config = _config(path)
    plan = dry_run(config, parse_topology(config.plan.topology), advice=False)
    return figures(plan) | {"products": None if plan.compiled is None else _products_share(plan.compiled)}


def _products_share(compiled):
    """Of one micro-batch on one device; attention is not among the products, for its kernels are none to XLA."""
    shape = compiled.batch_shape
    positions = shape.rows * shape.row_tokens
    implied = step_flops(compiled.model_config, Work(0, positions, positions, 0, 0, 1)).computed
    return products(compiled.program.as_text(), microbatches=1) * compiled.mesh.size / implied


def misfit(path):
    """The layout with rows of 28k tokens, without rematerialisation."""
    config = override(override(_config(path), "compute.remat", "none"), "packing.row_tokens", 28 * 1024)
    config = override(config, "recipe.microbatch_tokens", 8 * 28 * 1024)
    plan = dry_run(config, parse_topology(config.plan.topology))
    return figures(plan) | {"knobs": [dataclasses.asdict(knob) for knob in plan.knobs]}


def _config(path):
    spec = importlib.util.spec_from_file_location("config", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config().resolved()
