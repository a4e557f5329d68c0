"""What libraries say that nobody here needs to hear."""

import logging
import pathlib

import transformers

from isocompute_jax.records.quiet import MISSING_PYTORCH, hide_missing_pytorch


def test_the_line_about_pytorch_is_hidden_and_no_other(caplog):
    logger = logging.getLogger("transformers")
    handlers, propagate = logger.handlers[:], logger.propagate
    logger.handlers, logger.propagate = [caplog.handler], False
    try:
        hide_missing_pytorch()
        hide_missing_pytorch()
        logger.warning("PyTorch was not found. Models won't be available and only tokenizers can be used.")
        logger.warning("Torch was found, and it is old.")
    finally:
        logger.handlers, logger.propagate = handlers, propagate
    assert [record.message for record in caplog.records] == ["Torch was found, and it is old."]


def test_transformers_still_says_it_so():
    source = pathlib.Path(transformers.__file__).read_text(encoding="utf-8")
    assert f'logger.warning_advice(\n        "{MISSING_PYTORCH} ' in source and "get_logger(__name__)" in source
