"""Descriptions of AWS's services that are read once, however many clients the tests make.

Each botocore session reads and parses megabytes of JSON for its first client of a service, a quarter of a second of
processor time; a program has one or two sessions, the tests have thousands. A loader keeps what it has read: here all
sessions have the same one. Programs that tests start have their own.
"""

from __future__ import annotations

import functools
import sys

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    botocore_session = sys.modules.get("botocore.session")
    if botocore_session is not None:
        share_loader(botocore_session)


def share_loader(botocore_session: object) -> None:
    """One loader for each search path, as long as this process lives."""
    create = getattr(botocore_session, "create_loader")  # noqa: B009
    if not hasattr(create, "cache_info"):
        setattr(botocore_session, "create_loader", functools.lru_cache(maxsize=None)(create))  # noqa: B010
