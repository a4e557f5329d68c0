"""Checksums of a directory, by us and by coreutils."""

import pathlib
import shutil
import subprocess

import pytest

from isocompute_jax.records.checksums import SUMS, damage, write_sums


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
