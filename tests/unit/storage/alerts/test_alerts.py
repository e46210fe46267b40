"""An alert counts as sent once a sink has accepted it: real servers that are down, refuse, hang, and come back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.storage.alerts import outbox
from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.alerts.config import AlertSinks
from hyperpod_kit.storage.audit.ledger import AuditLedger
from hyperpod_kit.storage.audit.record import AuditRecord
from hyperpod_kit.storage.quota import backends
from hyperpod_kit.storage.quota.limits import QuotaLimits, QuotaUsed
from hyperpod_kit.storage.usage import report as usage_report
from tests.support.mail_server import mail_server
from tests.support.wait import until
from tests.unit.storage.alerts.conftest import AlertServers

Capture = pytest.CaptureFixture[str]
Words = List[str]


class Crossed:
    """A thing to be alerted of, and the words of the check that finds it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = tmp_path / "alerts.json"
        self._place = tmp_path
        self._patch = monkeypatch

    def quota(self) -> Words:
        self.share(0.85)
        return ["storage", "quota", "check", str(self.file), "--state", str(self._place / "state")]

    def share(self, share: float) -> None:
        """How full every directory is."""
        limits = QuotaLimits(hard_bytes=1000)
        self._patch.setattr(
            backends, "read_usage", lambda directory, _: QuotaUsed(directory, round(share * 1000), None, limits)
        )

    def usage(self) -> Words:
        tree = self._place / "tree"
        tree.mkdir()
        self._patch.setattr(usage_report.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1000, 850, 150))  # type: ignore[attr-defined]
        return ["storage", "usage", str(tree), "--alerts", str(self.file)]

    def audit(self) -> Words:
        ledger = self._place / "audit.sqlite"
        kept = AuditLedger(ledger, create=True)
        records = [AuditRecord(1.7e9, "node", f"n1:{number}", "read", f"/fsx/{number}") for number in range(3)]
        kept.add_entries(records)
        kept.close()
        with sqlite3.connect(ledger) as base:
            base.execute("update records set path = '/fsx/other' where seq = 2")
        return ["storage", "audit", "verify", "--ledger", str(ledger), "--alerts", str(self.file)]


CHECKS: Dict[str, Callable[[Crossed], Words]] = {
    "quota": Crossed.quota,
    "usage": Crossed.usage,
    "audit": Crossed.audit,
}


@pytest.fixture
def crossed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crossed:
    return Crossed(tmp_path, monkeypatch)


def configure(crossed: Crossed, sinks: Dict[str, Any], directories: Dict[str, List[str]]) -> None:
    body = {"admins": ["root@x.example"], "directories": directories, "sinks": sinks}
    crossed.file.write_text(json.dumps(body))


@pytest.mark.parametrize("name", CHECKS)
def test_down_at_the_crossing_and_for_three_checks_then_sent_once(
    name: str, crossed: Crossed, servers: AlertServers, capsys: Capture
) -> None:
    configure(crossed, servers.sinks, {"/fsx/alice": []})
    words = CHECKS[name](crossed)
    for _ in range(3):
        assert run_command_line(words) == 1
        shown = capsys.readouterr()
        assert "failed: mail: " in shown.err and "failed: sns: " in shown.err
        assert "still to be sent to mail root@x.example, sns arn:" in shown.out + shown.err
        assert "sent to mail" not in (shown.out + shown.err).replace("still to be sent to mail", "")
    servers.up()
    for _ in range(3):
        run_command_line(words)
    assert servers.recipients == [["root@x.example"]]
    ((subject, message),) = servers.published
    assert message in servers.mail.received[0].text.replace("=\n", "") or subject in servers.mail.received[0].text
    assert capsys.readouterr().out.count("still to be sent") == 0


def test_each_sink_and_each_address_is_on_its_own_account(
    crossed: Crossed, servers: AlertServers, capsys: Capture
) -> None:
    configure(crossed, servers.sinks, {"/fsx/alice": ["alice@x.example"]})
    words = crossed.quota()
    servers.up(mail=False)
    assert run_command_line(words) == 1 and len(servers.published) == 1
    servers.up(topics=False)
    servers.mail.refused = {"alice@x.example"}
    assert run_command_line(words) == 1
    assert servers.recipients == [["root@x.example"]]
    assert "mail: alice@x.example: 550 no such user" in capsys.readouterr().err
    servers.mail.refused = set()
    assert run_command_line(words) == 1 and run_command_line(words) == 1
    assert servers.recipients == [["root@x.example"], ["alice@x.example"]] and len(servers.published) == 1


def test_up_and_down_while_a_sink_is_down_is_one_alert_there_and_each_time_one_elsewhere(
    crossed: Crossed, servers: AlertServers
) -> None:
    configure(crossed, servers.sinks, {"/fsx/alice": []})
    words = crossed.quota()
    servers.up(mail=False)
    for share in (0.85, 0.5, 0.9, 0.4):
        crossed.share(share)
        run_command_line(words)
    assert [subject for subject, _ in servers.published] == ["/fsx/alice is 85% full", "/fsx/alice is 90% full"]
    servers.up(topics=False)
    assert run_command_line(words) == 0 and run_command_line(words) == 0
    (mail,) = servers.mail.received
    assert "Subject: /fsx/alice is 90% full (over)" in mail.text and "over in the meantime" in mail.text


def test_a_sink_that_is_down_is_asked_once_a_check_however_many_alerts_wait(
    crossed: Crossed, servers: AlertServers
) -> None:
    configure(crossed, {"mail": servers.sinks["mail"]}, {f"/fsx/{number}": [] for number in range(50)})
    words = crossed.quota()
    assert run_command_line(words) == 1
    servers.up()
    servers.mail.silent_after = 0
    servers.mail.ended.set()
    assert run_command_line(words) == 1 and servers.mail.calls == 1
    servers.mail.silent_after = 1 << 30
    assert run_command_line(words) == 1
    # Of fifty directories fifty alerts, over one connection, and never again.
    assert len(servers.recipients) == 50 and servers.mail.calls == 2
    assert run_command_line(words) == 1 and len(servers.recipients) == 50


def test_a_name_that_is_no_text_is_alerted_of_and_costs_no_other_alert(crossed: Crossed, servers: AlertServers) -> None:
    """A user gives a directory any name that the kernel takes."""
    odd = "/fsx/caf\udce9\nhint: \x1b[2J"
    configure(crossed, servers.sinks, {odd: [], "/fsx/b": []})
    words = crossed.quota()
    servers.up()
    run_command_line(words)
    assert run_command_line(words) == 1
    assert len(servers.recipients) == len(servers.published) == 2
    shown = [servers.published[0][1], servers.mail.received[0].text]
    assert all("/fsx/caf hint: [2J is 85.0% full" in text.replace("=\n", "") for text in shown)


KILLED = """
import sys
from pathlib import Path
from hyperpod_kit.storage.alerts import outbox
from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.alerts.config import AlertSinks
keys = ["/a", "/b", "/c"]
alerts = {key: Alert(key, f"{key} is full", f"{key} is full", ("x@x.example",)) for key in keys}
outbox.inspect_and_send_alerts(Path(sys.argv[1]), AlertSinks(mail=sys.argv[2]), lambda _: alerts, keys, now=1.7e9)
"""


def test_a_check_that_is_killed_sends_the_rest_the_next_time(tmp_path: Path) -> None:
    with mail_server() as server:
        server.silent_after = 1
        argv = [sys.executable, "-c", KILLED, str(tmp_path / "state"), server.address]
        check = subprocess.Popen(argv)
        try:
            until(
                lambda: (
                    outbox.read_standing_alerts_or_empty(tmp_path / "state")["/a"].accepted if server.received else None
                )
            )
        finally:
            check.send_signal(signal.SIGKILL)
            check.wait()
        server.silent_after = 1 << 30
        for _ in range(2):
            subprocess.run(argv, check=True, timeout=60)
        assert [mail.text.count("Subject: /a is full") for mail in server.received] == [1, 0, 0]
        assert len(server.received) == 3


def test_a_check_without_a_sink_says_so_each_time(crossed: Crossed, capsys: Capture) -> None:
    words = crossed.quota()
    for sinks, directories, complaint in (
        ({}, {"/fsx/alice": ["a@x.example"]}, "has neither a mail server nor an SNS topic"),
        ({"mail": "127.0.0.1:1"}, {"/fsx/alice": []}, "/fsx/alice: no alerts are sent"),
    ):
        crossed.file.write_text(json.dumps({"directories": directories, "sinks": sinks}))
        for _ in range(2):
            assert run_command_line(words) == 1
            shown = capsys.readouterr()
            assert complaint in shown.err and "sent to" not in shown.out
    crossed.share(0.1)
    crossed.file.write_text(json.dumps({"directories": {"/fsx/alice": []}}))
    assert run_command_line(words) == 0 and "no alerts are sent" in capsys.readouterr().err


def test_what_cannot_be_noted_is_not_sent(crossed: Crossed, servers: AlertServers, capsys: Capture) -> None:
    configure(crossed, servers.sinks, {"/fsx/alice": []})
    words = crossed.quota()
    servers.up()
    (crossed.file.parent / "state").mkdir()
    assert run_command_line(words) != 0
    assert servers.recipients == [] and servers.published == []


def test_what_an_earlier_build_noted_as_sent_is_sent_once_more(crossed: Crossed, servers: AlertServers) -> None:
    configure(crossed, servers.sinks, {"/fsx/alice": [], "/fsx/bob": []})
    words = crossed.quota()
    noted = {"format": "hpk-quota-state/1", "above": ["/fsx/alice", "/fsx/gone"]}
    (crossed.file.parent / "state").write_text(json.dumps(noted))
    servers.up()
    assert run_command_line(words) == 1 and run_command_line(words) == 1
    assert len(servers.recipients) == 2 and len(servers.published) == 2


def test_two_checks_at_once_send_nothing_twice(tmp_path: Path) -> None:
    state, complaint = tmp_path / "state", "another check is sending"
    with outbox.open_outbox(state, AlertSinks()), pytest.raises(HyperpodKitError, match=complaint):
        outbox.inspect_and_send_alerts(state, AlertSinks(), lambda _: {}, [], now=0.0)
    outbox.inspect_and_send_alerts(tmp_path / "state", AlertSinks(), lambda _: {}, [], now=0.0)


@pytest.mark.parametrize("text", ["{}", "[]", "", '{"format": "hpk-alerts/1", "alerts": {"/a": 1}}', "{" * 9999])
def test_a_state_of_something_else_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    (tmp_path / "state").write_text(text)
    with pytest.raises(UsageError, match="not a state file of alerts"):
        outbox.inspect_and_send_alerts(
            tmp_path / "state", AlertSinks(), lambda _: {"/a": Alert("/a", "", "")}, ["/a"], now=0.0
        )
    assert (tmp_path / "state").read_text() == text and os.stat(tmp_path / "state").st_nlink == 1


@pytest.mark.parametrize("since", [0, 0.0, 1.5, outbox.MAX_TIMESTAMP - 1])
def test_an_alert_stands_since_any_moment(since: float, tmp_path: Path) -> None:
    """Zero, too: an earlier build did not note since when."""
    standing = {"/a": outbox.StandingAlert(Alert("/a", "", ""), since)}
    outbox.write(tmp_path / "state", standing)
    assert outbox.read_standing_alerts_or_empty(tmp_path / "state") == standing


@pytest.mark.parametrize("since", ["-1", "true", '"1"', "null", str(outbox.MAX_TIMESTAMP)])
def test_what_is_no_moment_is_refused(since: str, tmp_path: Path) -> None:
    row = f'{{"subject": "", "sentence": "", "to": [], "accepted": [], "over": false, "since": {since}}}'
    (tmp_path / "state").write_text(f'{{"format": "{outbox.FORMAT}", "alerts": {{"/a": {row}}}}}')
    with pytest.raises(UsageError, match="is not a time"):
        outbox.read_standing_alerts_or_empty(tmp_path / "state")
