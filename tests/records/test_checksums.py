"""Checksums of a directory, by us and by coreutils."""

import pathlib
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from isocompute_jax.records.checksums import SUMS, damage, weights_digest, write_sums


@pytest.fixture
def directory(tmp_path) -> pathlib.Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a  b").write_bytes(b"1")
    (tmp_path / "inner" / "empty").write_bytes(b"")
    (tmp_path / "clock").write_text("10:15")
    write_sums(tmp_path, leave_out=("clock",))
    return tmp_path


def test_it_is_the_format_of_coreutils(directory):
    if shutil.which("sha256sum") is None:
        pytest.skip("no coreutils")
    check = ["sha256sum", "--check", "--strict", SUMS]
    assert subprocess.run(check, cwd=directory, capture_output=True, text=True, check=True).stdout.count(": OK") == 2
    assert (directory / SUMS).read_text().splitlines()[1] == (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  inner/empty"  # FIPS 180-4 of nothing
    )


def test_what_is_wrong_is_named(directory):
    assert damage(directory) is None
    (directory / "clock").write_text("10:16")
    (directory / "later").write_text("")
    assert damage(directory) is None
    (directory / "a  b").write_bytes(b"2")
    assert damage(directory) == "a  b is not what was written"
    (directory / "inner" / "empty").unlink()
    assert damage(directory) == "inner/empty is missing"
    for content, found in ((b"", "SHA256SUMS is empty"), (b"\xff", "SHA256SUMS cannot be read ('utf-8' codec")):
        (directory / SUMS).write_bytes(content)
        assert (damage(directory) or "").startswith(found)
    (directory / SUMS).unlink()
    assert damage(directory) == "SHA256SUMS is missing"


def test_weights_are_told_apart_whatever_files_and_floats_they_lie_in(tmp_path):
    """Beside ml_dtypes, which rounds to bfloat16 too."""
    draw = np.random.default_rng(0).standard_normal
    weights = {f"model.layers.{i}.mlp.up_proj.weight": draw((9, 8)).astype(np.float32) for i in range(3)}
    short = {name: x.astype(ml_dtypes.bfloat16) for name, x in weights.items()}
    changed = {name: np.array(x) for name, x in short.items()}
    for place, tensor in enumerate(changed.values()):
        tensor[0, place] = 7
    halves = {"a": dict([*short.items()][:1]), "b": dict([*short.items()][1:])}
    kinds = {"one": {"x": weights}, "short": {"x": short}, "parts": halves, "other": {"x": changed}, "none": {}}
    kinds["head"] = {"x": {**weights, "lm_head.weight": draw((2, 2))}}
    found = {}
    for kind, files in kinds.items():
        (tmp_path / kind).mkdir()
        for name, tensors in files.items():
            safetensors.numpy.save_file(tensors, tmp_path / kind / f"{name}.safetensors")
        found[kind] = weights_digest(tmp_path / kind)
    assert found["one"] == found["short"] == found["parts"] == found["head"] != found["other"]
    assert found["none"] == weights_digest(tmp_path / "nowhere") == ""
