"""The package's mains, each run in a process of its own that is forked from one that has imported what they share.

What a test of a command line costs would else be the import of JAX: more than a second each, of half a hundred tests.
"""

import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
SHARED = ["jax", "ml_collections.config_flags", "isocompute_jax.experiment.config", "isocompute_jax.fit"]
"""Modules without flags: those of the mains would clash."""
TIMEOUT_S = 300


def run(module: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS` in the root of the checkout, with its exit code and what it prints."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SHARED)
    with tempfile.TemporaryDirectory() as directory:
        files = [os.path.join(directory, name) for name in ("stdout", "stderr")]
        process = context.Process(target=_main, args=(module, [*arguments], *files))
        process.start()
        process.join(TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired([module, *arguments], TIMEOUT_S)
        printed = [pathlib.Path(file).read_text(encoding="utf-8") for file in files]
    return subprocess.CompletedProcess([module, *arguments], process.exitcode, *printed)


def _main(module: str, arguments: list[str], *files: str) -> None:
    os.chdir(ROOT)
    for stream, file in zip((1, 2), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    sys.path.insert(0, str(ROOT))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
