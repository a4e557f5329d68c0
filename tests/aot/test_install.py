"""What docs/clusters.md has people install, which `make aot-env` installs too: only what is pinned, and it works."""

import pathlib
import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[2]
ON_H200 = ("jax", "jax-cuda13-plugin", "flax", "optax", "jaxtyping", "absl-py", "safetensors")
"""What benchmarks/h200.sh takes for granted."""


@pytest.mark.parametrize("target", ["gpu", "tpu"])
def test_the_pinned_versions_and_no_others(target, request):
    found = request.getfixturevalue(target).call("tests.aot.install_programs:installed")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pinned = {
        f"{canonicalize_name(pin.name)}{pin.specifier}"
        for pin in pins
        if pin.marker is None or pin.marker.evaluate({"python_version": found["python"]})
    }
    ours = {"pip", "setuptools", "isocompute-jax"}
    installed = {f"{name}=={version}" for name, version in found["versions"].items() if name not in ours}
    assert sorted(installed - pinned) == []


@pytest.mark.parametrize(
    ("target", "fused"),
    [("gpu", ["mosaic", "triton", "experts: mosaic"]), ("tpu", ["splash", "experts: megablox"])],
)
def test_every_kernel_imports(target, fused, request):
    found = request.getfixturevalue(target).call("tests.aot.install_programs:missing_kernels", fused)
    assert found == dict.fromkeys(fused)


def test_the_playbooks_run_is_planned(gpu):
    """As docs/clusters.md asks for it, with Mosaic's kernels or not at all."""
    said = gpu.run(
        "-m",
        "isocompute_jax.train",
        "--config=configs/isocompute_hard_qwen2_5_7b.py",
        "--config.compute.attention=mosaic",
        "--dry_run",
        "--topology=h200:1x8",
        "--config.plan.sampler_devices=8",
    )
    assert "fits" in said


def test_the_wheels_of_the_h200_script_are_all_that_tokamax_needs(gpu):
    script = (ROOT / "benchmarks" / "h200.sh").read_text()
    [listed] = re.findall(r"-c constraints\.txt ((?:[\w\\#-]|\s)+)\nset -euo", script)
    wheels = {canonicalize_name(name) for name in listed.split() if name[0].isalpha()}
    needed, there = (
        set(gpu.call("tests.aot.install_programs:closure", names)) for names in (["tokamax"], list(ON_H200))
    )
    assert needed - there <= wheels <= needed
