"""The compilers know the topologies that configs name."""

import pytest


@pytest.mark.parametrize(("name", "count", "hosts"), [("h200:1x8", 8, 1), ("h200:2x8", 16, 2)])
def test_h200_hosts(gpu, name, count, hosts):
    devices = gpu.call("tests.aot.topology_programs:devices", name)
    assert len(devices) == count
    assert {device["kind"] for device in devices} == {"NVIDIA H200"}
    assert len({device["host"] for device in devices}) == hosts


@pytest.mark.parametrize(("name", "count"), [("tpu:v5p:4x4x4", 64), ("tpu:v6e:16x16", 256)])
def test_tpu_slices(tpu, name, count):
    devices = tpu.call("tests.aot.topology_programs:devices", name)
    assert len(devices) == count
    assert len({device["host"] for device in devices}) == count // 4


def test_a_slice_that_does_not_exist(tpu):
    assert "--topology=tpu:v6e:3x5: its compiler refuses it" in tpu.call(
        "tests.aot.topology_programs:refusal", "tpu:v6e:3x5"
    )
