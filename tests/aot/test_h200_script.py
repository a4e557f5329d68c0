"""The learners that benchmarks/h200.sh measures have room on one H200."""

import pytest

from isocompute_jax.accelerators import H200


@pytest.mark.parametrize("part", ["learner_1.5b", "learner_7b"])
def test_learners_fit(gpu, part):
    found = gpu.call("tests.aot.h200_programs:peaks", part)
    print({name: f"{size / 2**30:.1f} GiB" for name, size in found.items()})
    assert len(found) == 2
    assert max(found.values()) < H200.usable
