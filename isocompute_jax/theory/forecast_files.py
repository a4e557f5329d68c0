"""Forecasts on disk: what was asked, under which constants, and what was expected, to be held against the runs."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import NamedTuple

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.theory.forecast import Forecast, Question
from isocompute_jax.theory.world import Constants


class Filed(NamedTuple):
    """Of one file."""

    question: Question
    constants: Constants
    forecast: Forecast


def write_forecast(path: str | os.PathLike[str], filed: Filed) -> None:
    """Writes it as JSON, under a temporary name first."""
    asked = {"question": dataclasses.asdict(filed.question), "constants": dataclasses.asdict(filed.constants)}
    write_atomic(pathlib.Path(path), json.dumps(asked | filed.forecast.as_dict(), indent=1) + "\n")


def read_forecast(path: str | os.PathLike[str]) -> Filed:
    """What `write_forecast` wrote.

    Raises:
      InputError: it is missing, or something else.
    """
    try:
        found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        question = Question(**{**found["question"], "group_sizes": tuple(found["question"]["group_sizes"])})
        # None is NaN; group sizes stay whole numbers.
        arrays = {field.name: np.array(found[field.name], float) for field in dataclasses.fields(Forecast)}
        arrays["group_sizes"] = np.array(found["group_sizes"], int)
        constants = Constants(**found["constants"])
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: `python -m isocompute_jax.theory --out=...` writes it") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no forecast of `python -m isocompute_jax.theory --out=...` ({error!r})") from error
    return Filed(question, constants, Forecast(**arrays))
