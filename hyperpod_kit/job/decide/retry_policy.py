"""How often and how soon a job may try again, as its command line says it; budget.py decides by it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import NamedTuple


class RetryPolicy(NamedTuple):
    """Budgets, and the seconds between retries: none before the first, then `backoff`, which doubles with every further
    crash up to `backoff_cap`."""

    max_restarts: int = 3
    max_requeues: int = 20
    max_handed_back: int = 2
    max_quick: int = 20
    max_launches: int = 2
    backoff: float = 0.5
    backoff_cap: float = 60.0
