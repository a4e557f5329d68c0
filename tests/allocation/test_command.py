"""What the command shows: counts that are whole, exact weights, and what it refuses."""

import re

import numpy as np
import pytest

from isocompute_jax.allocation.estimator import expected_weight
from tests import mains


def test_the_table_and_what_is_refused():
    module = "isocompute_jax.allocation"
    done = mains.run(module, ["--policy=variance", "--rates=0.01,0.5", "--group_size=4", "--steps=64"])
    assert (done.returncode, done.stderr) == (0, "")
    rows = np.array([[float(x) for x in line.split()] for line in done.stdout.splitlines()[1:3]])
    assert rows[:, :2].tolist() == [[0.01, 2.0], [0.5, 6.0]]
    exact = [
        expected_weight(p, n, advantage_scale="group_std", baseline="group_mean") for p, n in ((0.01, 2), (0.5, 6))
    ]
    assert rows[:, 3] == pytest.approx(exact, abs=0.006) and rows[:, 4].tolist() == [1.0, 1.0]
    assert re.search(r"64 simulated steps; noise of its own estimator: \d\.\d\d x uniform's", done.stdout)
    done = mains.run(module, ["--policy=hit", "--block=3"])
    assert done.returncode == 2 and "--block = 3 does not divide the group size 8" in done.stderr
