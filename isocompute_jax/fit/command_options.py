"""What only the command has: options of how it runs and what it writes, not of what it finds."""

from __future__ import annotations

import dataclasses

from isocompute_jax.options import described, option


@described
@dataclasses.dataclass(frozen=True)
class CommandOptions:
    """Options of `python -m isocompute_jax.fit` beside those of the analysis."""

    tables: bool = option(
        False,
        "Print what the answer rests on, above it: fits, switches, the law, runs to add, findings, and each warning. "
        "Without it they are in tables.txt and summary.json.",
        identity=False,
    )
    png: bool = option(False, "Write every picture as figures/NAME.png too, beside NAME.svg.", identity=False)
    compile_cache: str = option(
        "",
        "Directory that keeps compiled programs between calls; off: none. Left alone it is isocompute_jax/fit in "
        "XDG_CACHE_HOME or ~/.cache, or JAX_COMPILATION_CACHE_DIR where that is set.",
        identity=False,
    )
