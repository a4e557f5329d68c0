"""The page: one HTML text with its style and scripts inside, which asks nobody but its own server."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.resources

DRAWING = "drawing.js"
"""What the page shares with the fit's report."""
SCRIPTS = ("elements.js", "chart.js", "runs.js", "details.js", "rollouts.js", "main.js")
"""In the order of the page; together they are one script."""


@dataclasses.dataclass(frozen=True)
class Page:
    """What is served."""

    html: bytes  # the page
    # its Content-Security-Policy: this one script and this one style run, and nothing is loaded from elsewhere
    policy: str


def load_page() -> Page:
    """Puts the page together from its files."""
    folder = importlib.resources.files("isocompute_jax.watching") / "page_files"

    def text(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    drawing = (importlib.resources.files("isocompute_jax.records") / DRAWING).read_text(encoding="utf-8")
    style = text("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join([drawing, *map(text, SCRIPTS)]) + "\n})();\n"
    html = text("page.html").replace("/* style */", style).replace("/* script */", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode(), policy)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
