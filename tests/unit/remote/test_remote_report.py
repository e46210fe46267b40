"""What a person and a CI system read of a thousand nodes."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as Xml

import pytest

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.reports.changes import describe_changes
from hyperpod_kit.remote.reports.groups import MOST_KINDS, describe_problems, summarize_mount_health
from hyperpod_kit.remote.reports.junit import to_xml
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.reports.report import mount_counts_table, mount_rows_table
from hyperpod_kit.remote.target import NodeTarget

OK = MountStatus("data", "mountpoint-s3", "/mnt/data", MountState.OK, "bucket", checked_at=1.0)
DEAD = replace(OK, state=MountState.STALE, detail="Transport endpoint is not connected")


def node(index: int, *mounts: MountStatus, error: str = "", group: str = "workers") -> NodeReport:
    target = NodeTarget(f"i-{index:017x}", group, "compute", f"10.1.{index // 250}.{index % 250 + 1}")
    return NodeReport(target, mounts or (() if error else (OK,)), error=error.replace("ADDRESS", target.address))


def fleet() -> list[NodeReport]:
    sick = {7: node(7, DEAD), 8: node(8, DEAD), 19: node(19, DEAD), 300: node(300, replace(OK, state=MountState.HUNG))}
    silent = {
        index: node(index, error="root@ADDRESS:22 does not respond: no answer within 10 s") for index in (40, 41, 950)
    }
    return [{**sick, **silent}.get(index, node(index)) for index in range(1000)]


def test_a_thousand_nodes_are_read_at_one_glance() -> None:
    reports = fleet()
    lines = mount_counts_table("demo", reports).format(80).splitlines()
    assert len(lines) == 3, "title, heads and one row"
    assert lines[1].split() == ["MOUNT", "GROUP", "PATH", "NODES", "OK", "STALE", "HUNG", "NO", "ANSWER"]
    assert lines[2].split() == ["data", "workers", "/mnt/data", "1000", "993", "3", "1", "3"]
    assert describe_problems(reports) == [
        "3 nodes of workers: data at /mnt/data is stale: Transport endpoint is not connected: ip-10-1-0-[8-9,20]",
        "3 nodes of workers: it does not respond: no answer within 10 s: ip-10-1-0-[41-42],ip-10-1-3-201",
        "workers i-0000000000000012c (10.1.1.51): data at /mnt/data is hung",
    ]
    assert summarize_mount_health(reports) == (
        "997 mounts on 1000 nodes: 4 not healthy, 3 nodes without an answer; 993 of 1000 nodes are healthy"
    )


def test_what_is_nearly_full_is_warned_of_and_counts_as_healthy() -> None:
    filling = replace(OK, kind="lustre", used_bytes=849, free_bytes=151, nearly_full=True)
    reports = [node(0, OK), node(1, filling), node(2, filling)]
    assert (
        all(report.healthy for report in reports)
        and summarize_mount_health(reports) == "3 mounts on 3 nodes: all healthy"
    )
    assert describe_problems(reports) == [
        "2 nodes of workers: warning: data at /mnt/data is 84 % full; what fills it: hyperpod-kit storage usage "
        "/mnt/data: ip-10-1-0-[2-3]"
    ]
    rows = mount_rows_table("demo", reports, 2.0)
    shown = rows.format(160) + rows.format(100)
    assert "NEARLY FULL" in mount_counts_table("demo", reports).format(160) and shown.count("84 %") == 4
    (told,) = reports[1].to_dict()["mounts"]
    assert (told["healthy"], told["nearly_full"], told["share"]) == (True, True, 0.849)
    untold = reports[0].to_dict()["mounts"][0]
    assert {untold[key] for key in ("share", "used_bytes", "free_bytes", "used_files", "free_files")} == {None}


def test_numbers_do_not_make_two_troubles_of_one() -> None:
    slow = [node(index, replace(OK, state=MountState.FULL, detail=f"answered after {index} ms")) for index in range(50)]
    assert describe_problems(slow) == [
        "50 nodes of workers: data at /mnt/data is full: answered after 0 ms: ip-10-1-0-[1-50]"
    ]


def test_a_thousand_different_troubles_are_not_a_thousand_lines() -> None:
    lies = [node(index, error="x" * (index + 1)) for index in range(1000)]
    lines = describe_problems(lies)
    assert len(lines) == MOST_KINDS + 1 and lines[-1] == "and 970 more kinds of problems; --json lists all"


def test_many_names_are_cut_and_counted() -> None:
    scattered = [node(index, DEAD) for index in range(0, 1000, 3)]
    [line] = describe_problems(scattered)
    assert len(line) < 300 and line.endswith(" more")
    shown, more = line.rsplit(" and ", 1)
    names = sum(part.count(",") + 1 for part in shown.rsplit("connected: ", 1)[1].split("],"))
    assert names + int(more.split()[0]) == len(scattered)


def test_what_changed_between_two_looks() -> None:
    before = [node(0), node(1, DEAD), node(2, error="gone"), node(3), node(4), node(5, DEAD)]
    after = [node(0, DEAD), node(1), node(2), node(3, error="ADDRESS refuses"), node(5, DEAD), node(6)]
    assert describe_changes(before, after) == [
        "new: workers i-00000000000000000 (10.1.0.1): data at /mnt/data is stale: Transport endpoint is not connected",
        "new: workers i-00000000000000003 (10.1.0.4): 10.1.0.4 refuses",
        "healthy again: 2 nodes of workers: ip-10-1-0-[2-3]",
        "joined: workers i-00000000000000006 (10.1.0.7)",
        "left: workers i-00000000000000004 (10.1.0.5)",
    ]
    assert describe_changes(after, after) == []
    later = [node(0, replace(DEAD, detail="other words"))]
    assert describe_changes([node(0, DEAD)], later) == [], "the same trouble in other words is nothing new"


def test_junit_has_a_case_for_each_mount_and_each_silence() -> None:
    reports = [
        node(0),
        node(1, DEAD, replace(OK, name="x", state=MountState.HUNG, required=False)),
        node(2, error='<no> "answer" & so on'),
        NodeReport(NodeTarget("i-9", "head", "controller", "10.0.0.9")),
    ]
    root = Xml.fromstring(to_xml("demo", reports, 0.0, 1.5))
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("5", "1", "1", "1")
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["head", "workers"] and suites["workers"].get("timestamp") == "1970-01-01T00:00:00"
    cases = {
        f"{case.get('classname')} {case.get('name')}": [child.tag for child in case] for case in root.iter("testcase")
    }
    assert cases == {
        "head.i-9 answers": [],
        "workers.i-00000000000000000 data at /mnt/data": [],
        "workers.i-00000000000000001 data at /mnt/data": ["failure"],
        "workers.i-00000000000000001 x at /mnt/data": ["skipped"],
        "workers.i-00000000000000002 answers": ["error"],
    }
    [error] = root.iter("error")
    assert error.get("message") == '<no> "answer" & so on'


@pytest.mark.parametrize("reports", [[], [node(0, error="x")], [NodeReport(NodeTarget("i-9", "head", "", ""))]])
def test_tables_without_mounts_are_tables(reports: list[NodeReport]) -> None:
    assert "mounts of cluster demo" in mount_counts_table("demo", reports).format(100)
