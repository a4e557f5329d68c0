"""The command in this process, and without the time that pictures take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from isocompute_jax import app
from isocompute_jax.fit.__main__ import VALUES, main

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1" width="1pt" height="1pt"></svg>'


def fit(*arguments: str) -> int:
    """Exit code of the main with these flags."""
    VALUES.unparse_flags()
    try:
        VALUES(["fit", *arguments])
        return app.exit_code(main)
    finally:
        VALUES.unparse_flags()


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Pictures are made and not rendered, which takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, file, **_: file.write(SVG))
        patch.setattr(ConstrainedLayoutEngine, "execute", lambda self, figure: None)
        yield
