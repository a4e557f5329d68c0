"""The compile cache: where it is, what a second process finds in it, and that two at once do not harm each other."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from isocompute_jax import compiling

PROGRAM = """
import sys
from isocompute_jax.compiling import use_compile_cache
use_compile_cache(sys.argv[1])
import jax
print("compiled" if float(jax.jit(lambda x: 2 * x + 1)(3.0)) == 7.0 else "wrong")
"""


def start(place: str, program: str = PROGRAM, **environment: str) -> subprocess.Popen[str]:
    """A process that compiles one program."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERS", "XDG"))}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, place],
        env=outer | {"JAX_PLATFORMS": "cpu"} | environment,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """What it logged; it must have computed the right thing."""
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "compiled\n"), errors
    return errors


def entries(root: pathlib.Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in root.iterdir()}


@pytest.mark.slow
def test_two_processes_at_once_leave_whole_entries(tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    ended(start(str(alone)))
    for process in [start(str(shared)) for _ in range(2)]:
        ended(process)
    assert set(entries(shared)) == set(entries(alone))
    ended(start(str(shared)))  # which warns, and so fails, where it cannot read an entry


@pytest.mark.parametrize(
    ("place", "environment", "used"),
    [
        ("", {}, "xdg/isocompute_jax/fit"),
        ("", {"JAX_COMPILATION_CACHE_DIR": "{root}/jax", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}, "jax"),
        ("{root}/given", {"JAX_COMPILATION_CACHE_DIR": "{root}/jax"}, "given"),
        ("off", {"JAX_COMPILATION_CACHE_DIR": "{root}/jax"}, None),
    ],
)
@pytest.mark.slow
def test_where_programs_are_kept(place, environment, used, tmp_path):
    given = {name: value.format(root=tmp_path) for name, value in environment.items()}
    ended(start(place.format(root=tmp_path), XDG_CACHE_HOME=str(tmp_path / "xdg"), **given))
    found = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == ({used} if used else set())


@pytest.mark.slow
def test_what_a_killed_process_compiled_is_kept(tmp_path):
    """A run that ends by SIGKILL tidies nothing up; the next one loads its programs all the same."""
    killed = PROGRAM + "import os\nos.kill(os.getpid(), 9)\n"
    process = start(str(tmp_path / "cache"), program=killed)
    process.communicate(timeout=120)
    assert process.returncode == -9
    first = {name: time for name, time in entries(tmp_path / "cache").items() if not name.startswith("process-")}
    assert first
    ended(start(str(tmp_path / "cache")))
    assert {name: time for name, time in entries(tmp_path / "cache").items() if name in first} == first


def test_a_folder_is_kept_within_its_bounds(tmp_path):
    """The oldest entries go; the folder of a process that is at work stays."""
    own = tmp_path / "process-1"
    own.mkdir()
    (tmp_path / "process-2").mkdir()
    for age, name in enumerate(("new", "old", "oldest")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    compiling._tidy_up(own, tmp_path, set(), most_bytes=250)
    assert set(entries(tmp_path)) == {"new", "old", "process-2"}


def test_training_keeps_programs_apart_for_each_kind_of_processor(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(compiling, "use_compile_cache", lambda place, **how: asked.append((place, how)))
    compiling.use_training_cache("there")
    assert asked == [("there", {"folder": f"train/{compiling.this_processor()}", "most_bytes": 1e9})]


def test_a_place_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    ended(start(str(tmp_path / "file" / "cache")))
