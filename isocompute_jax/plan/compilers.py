"""XLA's compilers for accelerators: which Python has them, and the environment that they need.

They run on machines without such hardware, but they come in packages of several gigabytes, so `make aot-env` puts them
into environments of their own: `.venv-aot-gpu` and `.venv-aot-tpu`. Where this Python has one itself, it serves too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Literal

from isocompute_jax.records.errors import InputError

CompilerKind = Literal["gpu", "tpu"]

_ROOT = pathlib.Path(__file__).parents[2]
_PROBE = """
import importlib.util, json, sys
found = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
tools = found.get("nvidia") and list(found["nvidia"].submodule_search_locations)
print(json.dumps({"missing": [name for name, spec in found.items() if spec is None], "tools": tools or []}))
"""
_MODULES: dict[CompilerKind, tuple[str, ...]] = {"gpu": ("jax_cuda13_plugin", "nvidia"), "tpu": ("libtpu",)}


QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # XLA's warnings
    "TPU_ACCELERATOR_TYPE": "v5p-8",  # libtpu looks for a host's, and complains; topologies are named anyway
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A Python that compiles for one kind of accelerator, and the variables that its process needs."""

    python: str
    environment: dict[str, str]


def variable(kind: CompilerKind) -> str:
    """The environment variable that names a Python with this compiler."""
    return f"ISOCOMPUTE_AOT_{kind.upper()}_PYTHON"


def find_compiler(kind: CompilerKind) -> Compiler:
    """The Python of `ISOCOMPUTE_AOT_<KIND>_PYTHON`, of `.venv-aot-<kind>` here or beside the package, or this one.

    Raises:
      InputError: none of them has the compiler; it says how to get it.
    """
    remedy = f"make aot-env AOT={kind} installs it into .venv-aot-{kind}"
    named = os.environ.get(variable(kind))
    if named:
        if not os.access(named, os.X_OK):
            raise InputError(f"{variable(kind)} = {named!r} is no program: {remedy}")
        pythons = [named]
    else:
        own = [str(folder / f".venv-aot-{kind}" / "bin" / "python") for folder in (pathlib.Path.cwd(), _ROOT)]
        pythons = [python for python in dict.fromkeys(own) if os.access(python, os.X_OK)] + [sys.executable]
    missing: list[str] = []
    for python in pythons:
        done = subprocess.run([python, "-c", _PROBE, *_MODULES[kind]], capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{python} does not run ({done.stderr.strip()[-300:]}): {remedy}")
        probed = json.loads(done.stdout)
        missing = probed["missing"]
        if not missing:
            return Compiler(python, _environment(probed["tools"]))
    raise InputError(f"the compiler for this topology is not installed ({', '.join(missing)} not found): {remedy}")


def _environment(nvidia: list[str]) -> dict[str, str]:
    """The variables of this process and those that the compilers need."""
    tools = [os.path.join(folder, "cu13", "bin") for folder in nvidia]  # ptxas
    return (
        QUIET
        | os.environ
        | {
            "JAX_PLATFORMS": "cpu",  # no backend but the host's is started; compilers come through topologies
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # it takes programs for attached devices alone
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip(),
            "PATH": os.pathsep.join([*tools, os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
    )
