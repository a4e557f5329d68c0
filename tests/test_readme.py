"""The README's script is run as it stands there."""

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).parent.parent / "README.md"


def script() -> str:
    [found] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return found


def test_library_script_takes_a_step(tmp_path):
    """In a process of its own, away from the checkout: no run directory, no flags, warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script()], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "'gradient_norm': 0.0," not in done.stdout and "'gradient_norm'" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_library_script_is_short():
    assert len([line for line in script().splitlines() if line.strip()]) <= 15
