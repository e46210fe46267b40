"""What logs, users and other nodes say to the tools of storage, to fan-out and to the flush of captures."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random
from typing import Any, Callable, List, Tuple

from hyperpod_kit.checkpoint.agent.flush import flush_users
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.job.fan_out import listing
from hyperpod_kit.storage.alerts import config, outbox
from hyperpod_kit.storage.audit import accounting, sources
from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, to_storable_record_or_gap
from hyperpod_kit.storage.quota import requests
from hyperpod_kit.storage.usage import growth, history
from hyperpod_kit.untrusted import parse
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import ODD_WORDS, a_json, some_bytes, some_lines
from tests.hostile.fuzz.places import file_of
from tests.hostile.fuzz.words import js, of_bytes, of_json, text_of

NODE: dict[str, Any] = {
    "time": 1.7e9,
    "host": "n1",
    "number": 3,
    "op": "read",
    "path": "/fsx/a",
    "new_path": "",
    "pid": 77,
    "uid": 4001,
    "user": "ada",
    "command": "python3",
    "job": "12",
    "job_by": "cgroup",
    "seen": "earlier",
    "why": "",
    "chain": "0" * 64,
}
TRAIL: dict[str, Any] = {
    "userIdentity": {"type": "AssumedRole", "arn": "arn:aws:sts::111122223333:assumed-role/Nodes/i-1"},
    "eventTime": "2026-08-20T17:52:15Z",
    "eventSource": "s3.amazonaws.com",
    "eventName": "GetObject",
    "sourceIPAddress": "10.0.1.7",
    "requestParameters": {"bucketName": "corpus", "key": "k"},
    "eventID": "b1f0a1e6-0000-4000-8000-000000000001",
}
ACCESS = (
    b'79a b [06/Feb/2019:00:00:38 +0000] 192.0.2.3 79a 3E5 REST.GET.OBJECT key "GET /b/key HTTP/1.1" 200 - 113 - 7 - '
    b'"-" "S3Console/0.4" - x SigV4 - h - -\n'
)
CHANGES = (
    b"8 01CREAT 17:52:15.123456789 2024.08.20 0x0 t=[0x2:0x1:0x0] j=4711 ef=0xf u=2001:2001 p=[0x2:0x1:0x0] a b\n"
    b"9 08RENME 17:52:16.5 2024.08.20 0x1 t=[0:0x0:0x0] j=mv.2001 u=2001:2001 p=[0x2:0x1:0x0] new s=[0x2:0x3:0x0] "
    b"sp=[0x2:0x4:0x0] old\n"
    b"10 06UNLNK 17:52:17.1 2024.08.20 0x1 t=[0x2:0x3:0x0] j=rm.0 u=0:0 p=[0x2:0x1:0x0] gone\n"
)
ACCOUNTS = b"12|4001|ada|n[1-3]|1700000000|1700000100\n13|4002|bob|n1|1700000000|Unknown\n"


def log(kind: str, seeds: List[bytes], make: Callable[[Random], bytes]) -> Parser:
    """A log of that kind, as a file: plain, packed, or packed and damaged."""

    def read(data: bytes) -> None:
        path = file_of(data, f"audit-{kind}")
        for entry in map(to_storable_record_or_gap, sources.read_entries_marking_damage(kind, Path(path))):
            assert isinstance(entry, (AuditRecord, AuditGap))

    def drawn(rng: Random) -> bytes:
        data = make(rng)
        if rng.random() < 0.2:
            data = gzip.compress(data, 1)
            data = some_bytes(rng, data, [data], []) if rng.random() < 0.5 else data
        return data

    return Parser(f"audit: {kind}", read, (UsageError,), drawn, (*seeds, gzip.compress(seeds[0], 1)))


def a_trail(rng: Random) -> bytes:
    data = a_json(rng, [{"Records": [TRAIL, TRAIL]}])
    return some_bytes(rng, data, [data], []) if rng.random() < 0.3 else data


def a_node_log(rng: Random) -> bytes:
    lines = [a_json(rng, [NODE]).replace(b"\n", b" ") for _ in range(rng.randint(1, 4))]
    return some_lines(rng, b"\n".join(lines) + b"\n", lambda inner: a_json(inner, [NODE]))


def read_accounts(data: bytes) -> None:
    for job in accounting.parse_sacct_jobs_per_node(text_of(data).split("\n")):
        assert job.uid >= 0 and job.start <= 1e18


def fan_out_rows(data: bytes) -> None:
    rows = parse.parse_json(data)
    plan = listing.plan_of("/src", listing.from_json(rows))
    assert all(not file.name.startswith(("/", "..")) for file in plan.files)


REQUEST = {
    "format": requests.FORMAT,
    "directory": "/fsx/ada",
    "bytes": 1 << 40,
    "files": 0,
    "why": "the next run",
    "at": 1.7e9,
}
ROWS: List[Tuple[Any, ...]] = [("a/b", "a/b", 40 << 20, 0o644, 10**18), ("c", "c", 0, 0o600, 0)]
SIGN = [True, 3, 4, 5.0]
OUTCOMES = [["run-a", "seq-000001.step-0000000010.e1-abcd", True, "committed", False, ""], ["b", None, 0, "", 0, ""]]

DAYS = [
    {
        "day": f"2026-11-2{number}",
        "at": 1795176000.0 + number * 86400,
        "entries": 4,
        "size": 9000,
        "allocated": 12288,
        "room": 1 << 40,
        "free": 1 << 39,
        "users": {"ada": 8192},
    }
    for number in range(5)
]
HISTORY = {"format": history.FORMAT, "root": "/fsx", "days": DAYS}
ALERT = {"subject": "s", "sentence": "/fsx is full", "to": ["a@b"], "since": 1.7e9, "accepted": [], "over": True}
ALERTS = {"format": outbox.FORMAT, "alerts": {"/fsx": ALERT}}
ALERTED = {"admins": ["a@b"], "directories": {"/fsx/ada": ["ada@b"]}, "sinks": {"mail": "h:25", "cloudwatch": False}}


def read_history(data: bytes) -> None:
    days = history.read_history_or_empty(Path(file_of(data, "history.json"))).days
    grown = growth.fit_growth(days)
    if grown is not None:
        growth.forecast_days_until_full(grown, 1 << 30)


def read_standing(data: bytes) -> None:
    for entry in outbox.read_standing_alerts_or_empty(Path(file_of(data, "alerts.json"))).values():
        assert len(entry.message_id) == 32 and entry.alert_marked_if_over().sentence is not None


def read_alerted(data: bytes) -> None:
    config.load(Path(file_of(data, "alerted.json")))


PARSERS = [
    Parser("storage: sizes by day", read_history, (HyperpodKitError,), of_json(HISTORY), (js(HISTORY),)),
    Parser("storage: standing alerts", read_standing, (HyperpodKitError,), of_json(ALERTS), (js(ALERTS),)),
    Parser("storage: who is alerted", read_alerted, (UsageError,), of_json(ALERTED), (js(ALERTED),)),
    Parser("flush: signs", flush_users._parse_sign, (), of_json(SIGN), (js(SIGN),)),
    log("node", [js(NODE) + b"\n", js({**NODE, "op": "gap"}) + b"\n"], a_node_log),
    log("cloudtrail", [js({"Records": [TRAIL]}), b'{"Records": []}'], a_trail),
    log(
        "s3-access-log",
        [ACCESS],
        of_bytes([ACCESS, ACCESS * 2], [word.encode("utf-8", "replace") for word in ODD_WORDS]),
    ),
    log("changelog", [CHANGES], of_bytes([CHANGES, CHANGES * 2], [b"\n9 01CREAT ", b"9" * 5000, b"2024.99.20", b"\n"])),
    Parser("audit: sacct", read_accounts, (), of_bytes([ACCOUNTS], [b"\xc2\xb2", b"|", b"n[1-99999]"]), (ACCOUNTS,)),
    Parser("quota: request", requests.decode_request, (ValueError,), of_json(REQUEST), (js(REQUEST),)),
    Parser("fan-out: rows", fan_out_rows, (ValueError, TypeError, UsageError), of_json(ROWS), (js(ROWS),)),
    Parser("flush: outcomes", flush_users._parse_outcomes, (), of_json(OUTCOMES), (js(OUTCOMES),)),
]
