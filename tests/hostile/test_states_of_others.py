"""What a command keeps from one call to the next is its own user's: another who has put a file there first would have
it believe that an alert was sent, or that a place had no room left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Callable, Iterator

import pytest

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.storage.alerts import outbox
from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.alerts.config import AlertSinks
from hyperpod_kit.storage.alerts.outbox import StandingAlert
from hyperpod_kit.storage.usage import history
from hyperpod_kit.storage.usage.history import UsageDay, UsageHistory
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, place

pytestmark = ROOT
SINKS = AlertSinks(mail="localhost:1")
FULL = Alert("/fsx/data", "full", "it is full", ("admin@x",))
DAY = UsageDay("2026-11-27", 1795780800.0, 1, 1, 1, 100, 1, {})


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """As /tmp is: root's and sticky."""
    with place() as top:
        yield top


def an_alert_that_was_sent(path: Path) -> None:
    outbox.write(path, {FULL.key: StandingAlert(FULL, 1.0, frozenset({"mail admin@x"}))})
    path.chmod(0o644)


def a_day_on_which_it_was_full(path: Path) -> None:
    history.write(path, UsageHistory("/fsx/data", (DAY,)))
    path.chmod(0o644)


def a_link_to_ones_own(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], None]]] = {
    "alerts": (outbox.read_standing_alerts_or_empty, an_alert_that_was_sent),
    "sizes by day": (history.read_history_or_empty, a_day_on_which_it_was_full),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("uid", [0, VICTIM])
@pytest.mark.parametrize("how", ["a file", "a link", "a fifo"])
def test_what_another_has_put_there_is_not_believed(what: str, uid: int, how: str, everybodys: Path) -> None:
    read, write = READERS[what]
    path = everybodys / "state.json"
    theirs = {
        "a file": lambda: write(path),
        "a link": lambda: a_link_to_ones_own(path),
        "a fifo": lambda: os.mkfifo(path),
    }
    assert as_user(ATTACKER, theirs[how]) == 0

    def refused() -> None:
        with pytest.raises(Untrusted, match=r"state\.json"):
            read(path)

    assert as_user(uid, refused) == 0


@pytest.mark.parametrize("what", READERS)
def test_another_name_for_it_keeps_nobody_from_reading_it(what: str, everybodys: Path) -> None:
    read, write = READERS[what]
    path = everybodys / "state.json"

    def mine() -> None:
        write(path)
        os.link(path, everybodys / "another name")
        assert read(path)

    assert as_user(VICTIM, mine) == 0


def test_nothing_is_sent_on_anothers_word(everybodys: Path) -> None:
    path = everybodys / "state.json"
    assert as_user(ATTACKER, lambda: an_alert_that_was_sent(path)) == 0
    with pytest.raises(Untrusted), outbox.open_outbox(path, SINKS):
        pytest.fail("a check goes on from it")
    assert json.loads(path.read_text())["alerts"][FULL.key]["accepted"] == ["mail admin@x"]
