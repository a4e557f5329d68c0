"""What the recorded sweeps say of the IsoCompute Playbook's findings (arXiv 2603.12151): numbers alone.

`course` reads n*(C) off the fitter's frontier, as a study makes it; `comparisons` holds sweeps against each other, with
intervals over seeds. Every function takes sweeps of the gallery; `page` puts what they return into words.
"""

from isocompute_jax.gallery.findings.comparisons import (
    batch_effect,
    level,
    level_gain,
    rise_of,
    size_shift,
    target_shift,
)
from isocompute_jax.gallery.findings.course import Course, Switch, analysed, course, seeds_of

__all__ = [
    "Course",
    "Switch",
    "analysed",
    "batch_effect",
    "course",
    "level",
    "level_gain",
    "rise_of",
    "seeds_of",
    "size_shift",
    "target_shift",
]
