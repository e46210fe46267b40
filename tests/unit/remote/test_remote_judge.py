"""What a node may say, and what is believed of it: every way to be broken, to be somebody else or to lie."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any, cast

import pytest

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.report_parser import NoReport, parse_mount_report
from hyperpod_kit.remote.reports.changes import describe_changes
from hyperpod_kit.remote.reports.groups import describe_problems
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.reports.validate_mounts import judge_report
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import NodeResponse
from hyperpod_kit.untrusted.text import LONGEST

NODE = NodeTarget("i-0", "g", "compute", "10.0.0.1")
OK = MountStatus("data", "mountpoint-s3", "/mnt/data", MountState.OK, "bucket")
WANTED = S3Mount("data", "/mnt/data", "bucket")
NOW = 1000.0


def said(*mounts: MountStatus, **changed: Any) -> str:
    report = {
        "node": "ip-10-0-0-1",
        "instance_id": "i-0",
        "bundle_id": "b",
        "checked_at": 0,
        "mounts": [asdict(mount) for mount in mounts],
    }
    return json.dumps({**report, **changed})


def verdict(text: str, returncode: int | None = 0, *, wanted: Any = (), at: float | None = None) -> NodeReport:
    return judge_report(NODE, NodeResponse(text, returncode, at=at), wanted, max_age=60.0, now=NOW)


def test_a_sound_report_amid_what_a_login_prints() -> None:
    text = "Welcome {name}!\n{ braces }\n" + said(OK) + "\nlogout\n"
    found = verdict(text, wanted=[WANTED])
    assert found.healthy and found.bundle_id == "b" and found.said_at == NOW and found.mounts == (OK,)


@pytest.mark.parametrize(
    ("seconds", "words"), [(-NOW, None), (-1700.0, "28 min behind"), (31 * 365.25 * 86400, "31 years ahead of")]
)
def test_a_node_that_is_asked_and_speaks_of_another_time(seconds: float, words: str | None) -> None:
    now = 1e9
    text = said(OK, checked_at=now + seconds if words else now + 600)
    found = judge_report(NODE, NodeResponse(text, 0), [WANTED], max_age=60.0, now=now)
    assert found.healthy == (words is None) and (words or "") in found.error


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"mounts": 1}',
        '{"mounts": [1]}',
        '{"mounts": [{"name": "a"}]}',
        said(OK)[:-5],
        "\x00\x1b[2J",
        '{"mounts": ' + "[" * 100_000,
        said(OK).replace("0.0", "1" * 5000),
        said(OK).replace("0.0", "NaN"),
        said(OK).replace("0.0", "Infinity"),
        said(OK).replace("0.0", "1e999"),
        said(OK).replace("0.0", '"soon"'),
        said(OK).replace("0.0", "true"),
        said(*[OK] * 300),
        said(replace(OK, name=1)),  # type: ignore[arg-type]
        said(OK, mounts={"data": "ok"}),
        "\ud800" + said(OK)[1:],
    ],
)
def test_nonsense_is_no_report_and_nothing_worse(text: str) -> None:
    found = verdict(text)
    assert not found.healthy and found.error and found.mounts == ()
    with pytest.raises(NoReport):
        parse_mount_report(text)
    found.error.encode()


def test_warnings_are_shown_and_fail_nothing() -> None:
    found = verdict(said(OK, warnings=["/fsx is mounted without\x1b[2J nosuid", 5, "x" * 10_000]))
    assert found.healthy and len(found.warnings) == 2 and found.to_dict()["warnings"] == list(found.warnings)
    assert found.warnings[0].isprintable() and len(found.warnings[1]) <= 500
    assert describe_problems([found])[0].endswith("warning: /fsx is mounted without [2J nosuid")
    for nothing in ("all", {"a": 1}, None, 7):
        assert verdict(said(OK, warnings=nothing)).warnings == ()
    quiet = verdict(said(OK))
    assert describe_changes([quiet], [found])[0].startswith("new: ") and describe_changes([found], [found]) == []
    assert describe_changes([found], [quiet]) == ["healthy again: g i-0 (10.0.0.1)"]


def test_words_of_a_node_cannot_reach_the_terminal() -> None:
    nasty = replace(
        OK, state=MountState.STALE, detail="\x1b]0;owned\x07\x1b[2J\n\rall is\twell\u202e\x00" + "x" * 10_000
    )
    [mount] = verdict(said(nasty), 1).mounts
    assert (
        mount.detail.isprintable()
        and mount.detail.startswith("]0;owned [2J all is well")
        and "\u202e" not in mount.detail
        and len(mount.detail) <= LONGEST
    )
    assert not verdict("", 3).healthy and verdict("\x1b[2Jgone", 0).error.isprintable()


@pytest.mark.parametrize(
    ("changed", "healthy"),
    [
        ({}, True),
        ({"instance_id": "i-9"}, True),  # resource_config.json lags behind a replacement; the address is its own
        ({"node": "n"}, True),
        ({"instance_id": "i-9", "node": "ip-10-0-0-9"}, False),
        ({"instance_id": "", "node": ""}, False),
    ],
)
def test_a_report_of_another_node_is_not_this_nodes(changed: dict[str, str], healthy: bool) -> None:
    found = verdict(said(OK, **changed))
    assert found.healthy is healthy and ("another node answers" in found.error) is not healthy


def test_an_empty_address_is_no_proof_of_identity() -> None:
    found = judge_report(
        replace(NODE, address=""), NodeResponse(said(OK, instance_id="i-9", node=""), 0), (), 60.0, NOW
    )
    assert "another node answers" in found.error


def test_what_is_required_is_for_the_configuration_to_say() -> None:
    sick = replace(OK, state=MountState.STALE, required=False)
    assert verdict(said(sick), 1).healthy, "without a configuration its word is all there is"
    assert not verdict(said(sick), 1, wanted=[WANTED]).healthy
    assert verdict(said(replace(sick, required=True)), 1, wanted=[replace(WANTED, required=False)]).healthy


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        (replace(OK, path="/mnt/other"), "the node has mountpoint-s3 at /mnt/other"),
        (replace(OK, kind="nvme"), "the node has nvme at /mnt/data"),
        (replace(OK, name="other"), "not in the node's bundle"),
    ],
)
def test_another_mount_is_not_the_one_that_is_asked_for(mount: MountStatus, why: str) -> None:
    found = verdict(said(mount), wanted=[WANTED])
    absent = next(one for one in found.mounts if one.name == "data")
    assert not found.healthy and (absent.state, absent.path) == ("absent", "/mnt/data") and why in absent.detail


def test_one_name_twice_counts_with_its_worse_half() -> None:
    assert not verdict(said(OK, replace(OK, state=MountState.HUNG)), 1, wanted=[WANTED]).healthy


def test_a_state_that_nobody_knows_is_not_health() -> None:
    found = verdict(said(replace(OK, state=cast(Any, "OK!"))), 1)
    assert not found.healthy and found.mounts[0].state == "unknown" and "`OK!`" in found.mounts[0].detail


def test_exit_code_and_report_must_agree() -> None:
    assert "lists no unhealthy mount" in verdict(said(OK), 1).error
    assert verdict(said(OK), None).healthy, "a report that was pushed has no exit code"
    assert "hyperpod-kit is not installed" in verdict("", 127).error
    assert "the check on the node exited 2: no message" in verdict(said(OK), 2).error


def test_an_old_report_is_no_answer() -> None:
    """By whichever clock it is older: the node's, or that of the log that had it."""

    def aged(said_ago: float, received_ago: float) -> NodeReport:
        return verdict(said(OK, checked_at=NOW - said_ago), None, at=NOW - received_ago)

    assert aged(59, 58).healthy and aged(-7200, 59).healthy, "a clock that is ahead makes nothing younger or older"
    assert "61 s old" in aged(-7200, 61).error
    old = aged(62, 1)
    assert "62 s old" in old.error and not old.healthy and old.said_at == NOW - 62, "delivered late"
    assert verdict(said(OK, checked_at=0), None, at=NOW - 59).healthy, "one that does not say when"


def test_all_that_is_missing_is_named() -> None:
    wanted = [WANTED, LustreMount("fsx", "/fsx", "fs.example", "m", required=False)]
    found = verdict(said(), wanted=wanted)
    assert [(one.name, one.state, one.required) for one in found.mounts] == [
        ("data", "absent", True),
        ("fsx", "absent", False),
    ]
