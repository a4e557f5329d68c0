"""Names of topologies, and what bad ones say."""

import jax
import pytest

from isocompute_jax.plan import topology
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.records.errors import InputError


@pytest.mark.parametrize(
    ("name", "device", "shape", "size", "hosts", "compiler"),
    [
        ("h200:1x8", "h200", (1, 8), 8, 1, "gpu"), ("h200:8x8", "h200", (8, 8), 64, 8, "gpu"),
        ("tpu:v5p:4x4x4", "v5p", (4, 4, 4), 64, 1, "tpu"), ("tpu:v6e:16x16", "v6e", (16, 16), 256, 1, "tpu"),
        ("tpu:v5e:4x4", "v5e", (4, 4), 16, 1, "tpu"), ("fake:8", "cpu", (8,), 8, 1, None),
        ("here", "cpu", (8,), 8, 1, None),
    ],
)  # fmt: skip
def test_names(name, device, shape, size, hosts, compiler):
    found = parse_topology(name)
    assert (found.device.name, found.shape, found.size, found.hosts, found.compiler) == (
        device,
        shape,
        size,
        hosts,
        compiler,
    )


@pytest.mark.parametrize(
    "name", ["h200", "h200:8", "h200:1x16", "h100:1x8", "tpu:v5p:4x4", "tpu:v6e:4x4x4", "tpu:v9:2x2", "fake:0", "fake"]
)
def test_unknown_names_say_what_is_known(name):
    with pytest.raises(InputError, match=f"--topology='{name}' is unknown: give h200:HOSTSx8, "):
        parse_topology(name)


def test_fake_devices_are_this_processs():
    assert parse_topology("fake:4").devices() == jax.devices()[:4]
    with pytest.raises(InputError, match="fake:9: this process has 8 CPU devices"):
        parse_topology("fake:9").devices()


def test_a_missing_compiler_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("ISOCOMPUTE_AOT_TPU_PYTHON", str(tmp_path / "python"))
    with pytest.raises(InputError, match=r"ISOCOMPUTE_AOT_TPU_PYTHON = .* is no program: make aot-env AOT=tpu"):
        topology.find_compiler("tpu")
    monkeypatch.delenv("ISOCOMPUTE_AOT_TPU_PYTHON")
    monkeypatch.setattr(topology, "_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(topology._MODULES, "tpu", ("no_such_module",))
    with pytest.raises(InputError, match=r"not installed \(no_such_module not found\): make aot-env AOT=tpu"):
        topology.find_compiler("tpu")
