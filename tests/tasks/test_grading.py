"""What importing the room costs."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_room_is_light():
    program = (
        "import isocompute_jax.tasks, sys\n"
        "heavy = {'jax', 'transformers', 'tokenizers', 'pyarrow', 'torch', 'sympy', 'httpx2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
