"""What tests of training data share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def more_workers_than_cores(monkeypatch):
    """torch warns of more workers than this machine has cores, and warnings are errors here."""
    monkeypatch.setattr("torch.utils.data.DataLoader.check_worker_number_rationality", lambda self: None)
