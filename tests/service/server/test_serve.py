"""`python -m isocompute_jax.serve`: which flags go together, and where it runs."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import mains

ROOT = pathlib.Path(__file__).parents[3]


def serve(*flags: str) -> subprocess.CompletedProcess:
    return mains.run("isocompute_jax.serve", flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--engine"),
        (("--engine=jax",), "--model"),
        (("--engine=other", "--model=m"), "vllm|jax"),
        (("--engine=vllm", "--model=m", "--max_slots=4"), "--max_slots belongs to --engine=jax"),
        (("--engine=vllm", "--model=m", "--mesh_tensor=1"), "--mesh_tensor belongs to --engine=jax"),
        (("--engine=jax", "--model=m", "--tensor_parallel=2"), "--tensor_parallel belongs to --engine=vllm"),
        (("--engine=jax", "--model=m", "--host=0.0.0.0"), "--insecure"),
        (("--engine=jax", "--model=m", "--port=70000"), "port"),
        (("--engine=jax", "--model=m", "--max_message_mib=0"), "max_message_mib"),
    ],
)
def test_flags_that_do_not_fit(flags, words):
    done = serve(*flags)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_help_describes_every_flag():
    done = serve("--help")
    assert done.returncode == 0
    for flag in ("max_slots", "gpu_memory_utilization", "tls_client_ca", "peer_timeout_s", "metrics_port"):
        assert f"--{flag}: " in done.stdout
    assert "(no help available)" not in done.stdout


def test_the_server_needs_none_of_the_learners_libraries():
    program = """
import sys
for name in ("jax", "jaxlib", "flax", "optax", "ml_dtypes", "transformers", "torch", "vllm"):
    sys.modules[name] = None  # importing it fails
import isocompute_jax.serve, isocompute_jax.service.proto.convert
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_are_checked_before_the_engine_starts(tmp_path):
    """A missing token file is said at once, not after a model has been loaded."""
    model = tmp_path / "no model"
    done = serve("--engine=jax", f"--model={model}", f"--token_file={tmp_path / 'token'}", f"--weights_dir={tmp_path}")
    assert done.returncode == 2 and os.fspath(model) not in done.stderr
    assert f"--token_file={tmp_path / 'token'}: No such file" in done.stderr
