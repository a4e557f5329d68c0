"""What this room's tests share."""

import pytest

from research.findings import statistics


@pytest.fixture
def few_replicates(monkeypatch):
    """For tests of a value: its interval over seeds is nearly all of the time."""
    monkeypatch.setattr(statistics, "REPLICATES", 10)
