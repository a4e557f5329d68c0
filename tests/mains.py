"""The package's mains, each run in a process of its own that is forked from one that has imported what they share.

What a test of a command line costs would else be the import of JAX and of the training packages: more than two seconds
each, of a hundred tests.
"""

import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
SHARED = ["jax", "isocompute_jax.experiment.loop", "isocompute_jax.fit"]
SHARED += ["transformers.generation.configuration_utils", "transformers.models.auto.tokenization_auto"]
"""Modules without flags: those of the mains would clash. transformers imports torch, which is three seconds more."""
TIMEOUT_S = 300


class Main:
    """`python -m MODULE ARGUMENTS`, or `python -c PROGRAM` where the module is `-c`; the end of a `with` ends it."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        stdout: pathlib.Path,
        stderr: pathlib.Path,
        *,
        folder: pathlib.Path = ROOT,
        core: int | None = None,
        cache: pathlib.Path | None = None,
    ):
        """Starts it in a folder. `core` is the only one that it uses, `cache` in place of the usual compile cache."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(SHARED)
        self.command = [module, *arguments]
        self._process = context.Process(target=_main, args=(self.command, [stdout, stderr], folder, core, cache))
        self._process.start()

    def __enter__(self) -> "Main":
        return self

    def __exit__(self, *_) -> None:
        self.send(signal.SIGKILL)
        self._process.join()

    @property
    def exit_code(self) -> int | None:
        """-N when signal N killed it, and None while it runs."""
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it runs."""
        if self.exit_code is None:
            assert self._process.pid
            os.kill(self._process.pid, number)

    def wait(self) -> int:
        """Waits until it has ended; returns its exit code."""
        self._process.join(TIMEOUT_S)
        if self.exit_code is None:
            self.send(signal.SIGKILL)
            raise subprocess.TimeoutExpired(self.command, TIMEOUT_S)
        return self.exit_code


def run(module: str, arguments: Sequence[str], **options) -> subprocess.CompletedProcess[str]:
    """Starts a `Main` and waits for it; returns its exit code and what it printed."""
    with tempfile.TemporaryDirectory() as directory:
        stdout, stderr = (pathlib.Path(directory) / name for name in ("stdout", "stderr"))
        with Main(module, arguments, stdout, stderr, **options) as main:
            code = main.wait()
        printed = [file.read_text(encoding="utf-8") for file in (stdout, stderr)]
    return subprocess.CompletedProcess(main.command, code, *printed)


def _main(
    command: list[str],
    files: list[pathlib.Path],
    folder: pathlib.Path,
    core: int | None,
    cache: pathlib.Path | None,
) -> None:
    os.chdir(folder)
    for stream, file in zip((1, 2), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if core is not None:
        os.sched_setaffinity(0, {core})
    if cache is not None:
        import jax

        jax.config.update("jax_compilation_cache_dir", str(cache))
    sys.path.insert(0, str(folder))
    sys.argv = command
    if command[0] == "-c":
        exec(compile(command[1], "<program>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
