"""How `make docs` builds the site: Sphinx over the project's root, so that pages link to each other as on any forge."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]

project = "isocompute_jax"
author = "the authors of isocompute_jax"
release = re.search(r'__version__ = "(.+)"', (ROOT / "isocompute_jax" / "__init__.py").read_text())[1]

extensions = ["myst_parser", "sphinx_external_toc"]
external_toc_path = "docs/site/contents.yml"
include_patterns = ["*.md", "docs/*.md"]

html_theme = "furo"
html_title = "isocompute_jax"
html_extra_path = ["index.html"]  # the site opens at README
html_copy_source = html_show_sphinx = False

myst_heading_anchors = 4
# A block of another language's is shown, and held by tests/test_docs.py: no need to guess at its words here.
suppress_warnings = ["misc.highlighting_failure"]
