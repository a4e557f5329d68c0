"""What the recorded sweeps say of the IsoCompute Playbook's findings (arXiv 2603.12151): numbers alone.

`course` reads n*(C) off the fitter's frontier, as a study makes it; `comparisons` holds sweeps against each other, and
`levels` says how high reward gets, with intervals over seeds. Every function takes sweeps of the gallery; `page` puts
what they return into words.
"""

from isocompute_jax.gallery.findings.comparisons import (
    batch_effect,
    level,
    level_gain,
    rise_of,
    size_effect,
    size_shift,
    target_shift,
)
from isocompute_jax.gallery.findings.course import Course, Switch, analysed, course, seeds_of
from isocompute_jax.gallery.findings.levels import (
    LITTLE,
    Point,
    Saturation,
    noise_explains,
    points_of,
    saturation,
    saturation_shift,
    saturation_size,
)

__all__ = [
    "LITTLE",
    "Course",
    "Point",
    "Saturation",
    "Switch",
    "analysed",
    "batch_effect",
    "course",
    "level",
    "level_gain",
    "noise_explains",
    "points_of",
    "rise_of",
    "saturation",
    "saturation_shift",
    "saturation_size",
    "seeds_of",
    "size_effect",
    "size_shift",
    "target_shift",
]
