"""Logs of four kinds, as their makers write them; and lines that are none."""

from __future__ import annotations

import json
from typing import Any, List

import pytest

from hyperpod_kit.storage.audit import accounting
from hyperpod_kit.storage.audit.logs import changelog, cloudtrail, node_log, s3_access_log
from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, Entry
from hyperpod_kit.system import hash_chain

# From the examples of AWS's user guides, with a key that has spaces, a quote and a percent sign.
ACCESS = (
    "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be amzn-s3-demo-bucket1 "
    "[06/Feb/2019:00:00:38 +0000] 192.0.2.3 arn:aws:sts::111122223333:assumed-role/Nodes/i-1 3E57427F3EXAMPLE "
    'REST.PUT.OBJECT my%2520photos/it%27s%252520.txt "PUT /amzn-s3-demo-bucket1/my%20photos/x.txt HTTP/1.1" 200 - '
    '113 4406 7 41 "-" "mountpoint-s3/1.23 "quoted" (linux)" - s9lzHYrFp76ZVxRcpX9+5cjAnEH2ROuNkd2BHfIa6UkFVdtjf5mKR3 '
    "SigV4 ECDHE-RSA-AES128-GCM-SHA256 AuthHeader amzn-s3-demo-bucket1.s3.amazonaws.com TLSV1.2 - Yes us-east-1"
)
TRAIL: dict[str, Any] = {
    "eventVersion": "1.09",
    "userIdentity": {"type": "AssumedRole", "arn": "arn:aws:sts::111122223333:assumed-role/Nodes/SageMaker"},
    "eventTime": "2026-08-20T17:52:15Z",
    "eventSource": "s3.amazonaws.com",
    "eventName": "DeleteObject",
    "sourceIPAddress": "10.0.1.7",
    "userAgent": "[mountpoint-s3/1.23]",
    "requestParameters": {"bucketName": "corpus", "key": "a file with spaces"},
    "eventID": "b1f0a1e6-0000-4000-8000-000000000001",
    "errorCode": "AccessDenied",
}
CHANGES = (
    "8 01CREAT 17:52:15.123456789 2024.08.20 0x0 t=[0x200000402:0x1:0x0] j=4711 ef=0xf u=2001:2001 "
    "nid=10.0.0.1@tcp p=[0x200000007:0x1:0x0] a file with spaces\n"
    "9 08RENME 17:52:16.5 2024.08.20 0x1 t=[0:0x0:0x0] j=mv.2001 ef=0xf u=2001:2001 nid=10.0.0.1@tcp "
    "p=[0x2:0x1:0x0] new name s=[0x2:0x3:0x0] sp=[0x2:0x4:0x0] old name\n"
    "12 06UNLNK 17:52:17.000000001 2024.08.20 0x1 t=[0x2:0x3:0x0] j=rm.0 ef=0xf u=0:0 nid=10.0.0.1@tcp "
    "p=[0x2:0x1:0x0] gone\n"
)


def both(entries: Any) -> tuple[List[AuditRecord], List[AuditGap]]:
    found: List[Entry] = list(entries)
    return [one for one in found if isinstance(one, AuditRecord)], [one for one in found if isinstance(one, AuditGap)]


def test_s3_access_logs() -> None:
    (one,), (gap,) = both(s3_access_log.parse_entries_with_best_effort_gap([ACCESS + "\n"], "log"))
    assert (one.op, one.path) == ("write", "s3://amzn-s3-demo-bucket1/my photos/it's%20.txt")
    assert one.time == 1549411238.0 and one.host == "192.0.2.3" and one.user.endswith("assumed-role/Nodes/i-1")
    assert one.command.startswith("mountpoint-s3/1.23") and one.result == ""
    assert gap.why == s3_access_log.BEST_EFFORT
    refused = ACCESS.replace(" 200 - ", " 403 AccessDenied ")
    assert both(s3_access_log.parse_entries_with_best_effort_gap([refused], "log"))[0][0].result == "403"


def test_cloudtrail() -> None:
    other = {**TRAIL, "eventSource": "sts.amazonaws.com"}
    (one,), gaps = both(
        cloudtrail.parse_entries_until_damage(json.dumps({"Records": [TRAIL, other]}, indent=1).splitlines(), "f")
    )
    assert (one.op, one.path, one.result) == ("delete", "s3://corpus/a file with spaces", "AccessDenied")
    assert one.note == "the node's role: any of its users" and gaps == []
    assert len(both(cloudtrail.parse_entries_until_damage(['{"Records": ['], "f"))[1]) == 1
    assert (
        len(
            both(
                cloudtrail.parse_entries_until_damage(
                    [json.dumps({"Records": [3, {"eventSource": "s3.amazonaws.com"}]})], "f"
                )
            )[1]
        )
        == 2
    )


def test_changelogs() -> None:
    found, gaps = both(changelog.parse_entries_marking_sequence_gaps(CHANGES.splitlines(keepends=True), "MDT0"))
    assert [(one.op, one.uid, one.job) for one in found] == [
        ("create", 2001, "4711"),
        ("rename", 2001, ""),
        ("delete", 0, ""),
    ]
    assert found[0].path == "[0x200000007:0x1:0x0]/a file with spaces" and found[0].by == "log"
    assert (found[1].path, found[1].new_path) == ("[0x2:0x4:0x0]/old name", "[0x2:0x1:0x0]/new name")
    assert [gap.why for gap in gaps] == ["MDT0: records 10 to 11 are missing"]


def chained(*bodies: dict[str, Any]) -> List[str]:
    chain, lines = hash_chain.START, []
    for number, body in enumerate(bodies, 1):
        text, chain = hash_chain.encode_line(chain, {"time": float(number), "host": "n1", "number": number, **body})
        lines.append(text)
    return lines


def test_a_changed_line_of_a_nodes_log_is_a_gap_at_that_line() -> None:
    lines = chained(*({"op": "write", "path": f"/fsx/{n}", "uid": 2001, "pid": n} for n in range(1, 6)))
    assert [one.path for one in both(node_log.parse_entries_marking_chain_gaps(lines, "n1"))[0]] == [
        f"/fsx/{n}" for n in range(1, 6)
    ]
    assert both(node_log.parse_entries_marking_chain_gaps(lines, "n1"))[1] == []
    forged = [line.replace("/fsx/3", "/fsx/x") for line in lines]
    assert "line 3" in both(node_log.parse_entries_marking_chain_gaps(forged, "n1"))[1][0].why
    taken = [*lines[:2], *lines[3:]]
    assert "line 3" in both(node_log.parse_entries_marking_chain_gaps(taken, "n1"))[1][0].why
    assert (
        len(both(node_log.parse_entries_marking_chain_gaps([*lines, '{"op":"wri'], "n1"))[1]) == 1
    )  # a node that lost its power


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\x00\xff",
        "{}",
        "[]",
        "null",
        '{"chain": 1}',
        '{"op": {}, "chain": ""}',
        "8 01CREAT",
        "a b [c] d " * 9,
        "[" * 5000,
    ],
)
def test_lines_that_are_none(line: str) -> None:
    for importer in (
        node_log.parse_entries_marking_chain_gaps,
        cloudtrail.parse_entries_until_damage,
        s3_access_log.parse_entries_with_best_effort_gap,
        changelog.parse_entries_marking_sequence_gaps,
    ):
        records, gaps = both(importer([line], "f"))
        assert all(one.op != "write" for one in records) and (gaps or records or not line)


def test_what_sacct_prints() -> None:
    text = (
        "41|2001|alice|n[1-2]|100|200\n42|2001|alice|n1|150|Unknown\n43|2001|alice|None assigned|Unknown|Unknown\nx\n"
    )
    found = list(accounting.parse_sacct_jobs_per_node(text.splitlines()))
    assert [(one.job, one.host, one.end) for one in found] == [
        ("41", "n1", 200.0),
        ("41", "n2", 200.0),
        ("42", "n1", accounting.FOREVER),
    ]
