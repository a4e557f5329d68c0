"""Run by test_layouts.py where the compilers are."""

import dataclasses
import importlib.util

from isocompute_jax.experiment.config import from_dict, override
from isocompute_jax.plan.dry_run import dry_run
from isocompute_jax.plan.report import figures
from isocompute_jax.plan.topology import parse_topology


def figures_of(path):
    config = _config(path)
    return figures(dry_run(config, parse_topology(config.plan.topology), advice=False))


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
    return from_dict(module.get_config().to_dict()).resolved()
