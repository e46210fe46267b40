"""What boto3 reads and makes anew for each client, read and made once, however many clients the tests make.

Each botocore session reads and parses megabytes of JSON for its first client of a service, a quarter of a second of
processor time, makes a function for each operation of the service, and translates the names of hundreds of events; a
program has one or two sessions, the tests have thousands. Here all sessions have the same loader, the same functions
and the same translations. Programs that tests start have their own.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, Tuple

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    botocore_session = sys.modules.get("botocore.session")
    if botocore_session is not None:
        share_loader(botocore_session)
        share_methods()
        share_names_of_events()


def share_loader(botocore_session: object) -> None:
    """One loader for each search path, as long as this process lives."""
    create = getattr(botocore_session, "create_loader")  # noqa: B009
    if not hasattr(create, "cache_info"):
        setattr(botocore_session, "create_loader", functools.lru_cache(maxsize=None)(create))  # noqa: B010


def share_methods() -> None:
    """One function for each operation of a service; what a client is asked for is in the client alone."""
    from botocore.client import ClientCreator

    if hasattr(ClientCreator._create_methods, "shared"):
        return
    make: Callable[[Any, Any], Dict[str, Any]] = ClientCreator._create_methods
    made: Dict[Tuple[str, str, int], Dict[str, Any]] = {}

    def create(self: Any, service: Any) -> Dict[str, Any]:
        key = (service.service_name, service.api_version, len(service.operation_names))
        if key not in made:
            made[key] = make(self, service)
        return dict(made[key])

    create.shared = True  # type: ignore[attr-defined]
    ClientCreator._create_methods = create


def share_names_of_events() -> None:
    """One dictionary of the names that botocore has translated."""
    from botocore.hooks import EVENT_ALIASES, EventAliaser

    if hasattr(EventAliaser.__init__, "shared"):
        return
    begin: Callable[..., None] = EventAliaser.__init__
    names: Dict[str, str] = {}

    def initialise(self: Any, *args: Any, **words: Any) -> None:
        begin(self, *args, **words)
        if self._event_aliases is EVENT_ALIASES:
            self._alias_name_cache = names

    initialise.shared = True  # type: ignore[attr-defined]
    EventAliaser.__init__ = initialise
