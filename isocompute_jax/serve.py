"""`python -m isocompute_jax.serve`: one sampler server.

    python -m isocompute_jax.serve --engine=jax --model=runs/base/model --port=50051
    python -m isocompute_jax.serve --engine=vllm --model=Qwen2.5-1.5B --port=50051 --token_file=token --wait_for_weights
    python -m isocompute_jax.serve --engine=stock --model=Qwen2.5-7B --url=http://gpu-1:8000 --reload_dir=/shared

It serves until SIGTERM or SIGINT: then it takes no new groups, gives running ones --grace_s seconds, and ends.
"""

from __future__ import annotations

import asyncio
import os

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError

with app.imports():
    from isocompute_jax.service.server.engines.base import (
        Engine,
        EngineSettings,
        JaxSettings,
        StockSettings,
        VllmSettings,
    )
    from isocompute_jax.service.server.server import ServerConfig, serve

SETTINGS: dict[str, type[EngineSettings]] = {"vllm": VllmSettings, "jax": JaxSettings, "stock": StockSettings}

ENGINE = flags.DEFINE_enum("engine", None, list(SETTINGS), "What draws the completions.")
define_flags(ServerConfig)
SHARED_FLAGS = define_flags(EngineSettings)
OWN_FLAGS = {engine: define_flags(settings, leave_out=SHARED_FLAGS) for engine, settings in SETTINGS.items()}


def main() -> None:
    """Flags -> one call."""
    engine_name = app.needed(
        ENGINE,
        "--engine=jax needs nothing more, --engine=vllm an environment of its own, --engine=stock a `vllm serve`",
    )
    for engine, own in OWN_FLAGS.items():
        given = [flag.name for flag in own.values() if flag.present]
        if given and engine != engine_name:
            raise InputError(f"--{given[0]} belongs to --engine={engine}; this is --engine={engine_name}")
    config = from_flags(ServerConfig)
    settings = from_flags(SETTINGS[engine_name], load=not config.wait_for_weights)
    asyncio.run(serve(make_engine(settings), config))


def make_engine(settings: EngineSettings) -> Engine:
    """The engine of its settings; its library is imported here.

    Raises:
      InputError: the library is missing in this environment.
    """
    if isinstance(settings, VllmSettings):
        try:
            from isocompute_jax.service.server.engines.vllm.engine import VllmEngine
        except ImportError as error:
            how = "run it in the environment of `make vllm-env-cuda`, or for CPUs of `make vllm-env`"
            how += "; without a clone, pip install 'isocompute-jax[serve,vllm]'"
            raise InputError(f"--engine=vllm: {error}; {how}") from error
        return VllmEngine(settings)
    if isinstance(settings, StockSettings):
        from isocompute_jax.service.server.engines.stock import StockEngine

        return StockEngine(settings)
    assert isinstance(settings, JaxSettings)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # "PyTorch was not found": it is not wanted
    try:
        from isocompute_jax.service.server.engines.jax_engine import JaxEngine
    except ImportError as error:
        raise InputError(f"--engine=jax: {error}; pip install 'isocompute-jax[train,serve]'") from error
    check_driver_for_jax()
    use_training_cache(settings.compile_cache)
    return JaxEngine(settings)


if __name__ == "__main__":
    app.run(main)
