"""A directory for what names its files by path: no link of another user leads there, whatever it leads to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.errors import UntrustedPlace
from hyperpod_kit.storage import private_database
from hyperpod_kit.untrusted.closed import resolve_directory_closed_to_others
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, place

pytestmark = ROOT


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory of the victim's, beside one of the attacker's in which everybody may write."""
    with place(0o755) as top:
        for name, uid, mode in (("closed", VICTIM, 0o700), ("open", ATTACKER, 0o777)):
            (top / name).mkdir()
            os.chown(top / name, uid, uid)
            (top / name).chmod(mode)
        yield top / "closed"


def refused(path: Path) -> int:
    """0 where the victim is told that others have a part in this directory; no database is made there."""

    def work() -> None:
        with pytest.raises(UntrustedPlace):
            resolve_directory_closed_to_others(str(path))
        with pytest.raises(UntrustedPlace):
            private_database.open_private_database(path / "state", timeout=0.1)

    return as_user(VICTIM, work)


def test_a_link_of_anothers_is_refused_though_it_leads_to_what_is_closed(closed: Path) -> None:
    link = closed.parent / "open" / "link"
    assert as_user(ATTACKER, lambda: link.symlink_to(closed)) == 0
    assert refused(link) == 0 and refused(link / ".") == 0
    assert os.listdir(closed) == []


def test_a_directory_of_ones_own_in_one_of_anothers_is_refused(closed: Path) -> None:
    inner = closed.parent / "open" / "inner"
    assert as_user(VICTIM, lambda: inner.mkdir(mode=0o700)) == 0
    assert refused(inner) == 0


def test_what_is_closed_is_named_without_the_links_of_its_user(closed: Path) -> None:
    link = closed.parent / "link"
    link.symlink_to(closed)  # root's

    def work() -> None:
        assert resolve_directory_closed_to_others(str(link)) == str(closed)
        private_database.open_private_database(link / "state", timeout=0.1).execute("create table rows (row)")

    assert as_user(VICTIM, work) == 0
    assert os.listdir(closed) == ["state"]
