"""Learning curves of finished runs that are kept with the project: `gallery/NAME.parquet` holds those of one sweep.

What a run costs in minutes or days is kept in kilobytes: every figure of docs/findings.md is drawn from these files,
`python -m isocompute_jax.fit --runs=gallery/NAME.parquet` fits them, and nothing has to be trained again.
"""

from isocompute_jax.gallery.recording import Recorded, record
from isocompute_jax.gallery.tables import Sweep, read_sweep

__all__ = ["Recorded", "Sweep", "read_sweep", "record"]
