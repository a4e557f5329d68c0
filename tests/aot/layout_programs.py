"""Run by test_layouts.py where the compilers are."""

import importlib.util

from isocompute_jax.experiment.config import from_dict
from isocompute_jax.plan.dry_run import dry_run
from isocompute_jax.plan.report import figures
from isocompute_jax.plan.topology import parse_topology


def figures_of(path):
    spec = importlib.util.spec_from_file_location("config", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = from_dict(module.get_config().to_dict()).resolved()
    return figures(dry_run(config, parse_topology(config.plan.topology), advice=False))
