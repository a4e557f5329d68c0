"""What libraries say that nobody here needs to hear."""

from __future__ import annotations

import logging

MISSING_PYTORCH = "PyTorch was not found."
"""How transformers begins a warning when it is imported without PyTorch, which this package never asks it for."""


def hide_missing_pytorch() -> None:
    """Keeps that line out of the log, and nothing else; called before transformers is imported."""
    logging.getLogger("transformers").addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(MISSING_PYTORCH)
