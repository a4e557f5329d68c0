"""Rewards that failed in a measurement: said in one line, and too many of them are the end of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isocompute_jax.experiment.curation.measurement import Survey
from isocompute_jax.experiment.curation.store import Store
from isocompute_jax.records.errors import RunError

MOST = 0.5
"""Share of all rollouts that may be without a reward."""
NAMED = 5
"""Problems that are named."""


def check(found: Survey, store: Store) -> None:
    """Holds a measurement to what sets can be cut by.

    Raises:
      RunError: of more than half of all rollouts no reward is recorded, or no problem is measured.
    """
    without = int((~store.known | store.failed).sum())
    if without > MOST * store.known.size or not store.measured.any():
        ids, why = _names(found, ~store.measured | store.failed.any(axis=1)), _reason(store)
        raise RunError(
            f"no reward is recorded of {without} of {store.known.size} rollouts (problems {ids}; {why}): no set is cut "
            "by such a measurement. See to what gives rewards; the same command draws again what is not recorded, and "
            'a line of counts.jsonl with "failures" is drawn again once it is deleted'
        )


def said(found: Survey, store: Store) -> str:
    """How many rewards failed, on which problems, and why; empty where none did."""
    failed, left_out = int(store.failed.sum()), ~store.measured
    parts = []
    if failed:
        ids = _names(found, np.asarray(store.failed.any(axis=1)))
        parts.append(f"{failed} of {store.known.size} rollouts count as wrong (problems {ids})")
    if left_out.any():
        ids = _names(found, left_out)
        parts.append(
            f"{int(left_out.sum())} of {len(left_out)} problems are in no set ({ids}), the same command measures them"
        )
    return f"rewards failed: {'; '.join(parts)}; {_reason(store)}" if parts else ""


def _names(found: Survey, rows: np.ndarray) -> str:
    """The first ids of the problems in `rows` [P]."""
    ids: Sequence[str] = [id for id, row in found.rows.items() if rows[row]]
    return ", ".join(ids[:NAMED]) + (", ..." if len(ids) > NAMED else "")


def _reason(store: Store) -> str:
    """Why, of the first problem of whom that is known."""
    id, why = next(iter(store.reasons.items()), ("", "no reason is recorded"))
    return f"{id}: {why}" if id else why
