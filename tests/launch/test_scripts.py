"""Every shell script of launch/, read by shellcheck."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SHELLCHECK = pathlib.Path(sys.executable).parent / "shellcheck"
SCRIPTS = sorted([*(ROOT / "launch").rglob("*.sh"), ROOT / "launch" / "rehearsal" / "nvidia-smi"])


def check(script: pathlib.Path) -> str:
    done = subprocess.run([SHELLCHECK, "--color=never", script], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_shellcheck_finds_nothing(script):
    assert check(script) == ""


def test_shellcheck_finds_something(tmp_path):
    script = tmp_path / "bad.sh"
    script.write_text("#!/bin/bash\nrm -r $1/*\n")
    assert "SC2086" in check(script)
    assert len(SCRIPTS) > 1
