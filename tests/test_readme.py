"""The README's scripts are run as they stand there."""

import pathlib
import re
import subprocess
import sys

import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"
SCRIPTS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(("number", "said"), [(0, ("'gradient_norm'",)), (1, ("'asymptote': 0.7", "ok"))])
def test_script_runs(number, said, tmp_path):
    """In a process of its own, away from the checkout: no run directory, no flags, warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", SCRIPTS[number]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in said) and "'gradient_norm': 0.0," not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_scripts_are_short():
    assert len(SCRIPTS) == 2
    for script in SCRIPTS:
        assert len([line for line in script.splitlines() if line.strip()]) <= 15
