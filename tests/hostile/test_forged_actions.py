"""What a user writes into the journal passes for nothing that root did; what a node says of it is only words."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional, Sequence, cast

import pytest

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError, Unreachable, UsageError
from hyperpod_kit.model.actions import LONGEST, MOST, Action
from hyperpod_kit.node.commands import actions
from hyperpod_kit.remote.diagnosis.actions import parse_actions_response
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Completed

OURS: Dict[str, Any] = {
    "__REALTIME_TIMESTAMP": "1800000000000000",
    "MESSAGE_ID": audit.MESSAGE_ID,
    "_TRANSPORT": "journal",
    "_UID": "0",
    "_EXE": "/usr/bin/python3.10",
    "_SYSTEMD_UNIT": "hyperpod-kit-repair@fsx.service",
    "HYPERPOD_KIT_ACTION": "unmounted",
    "HYPERPOD_KIT_ON": "/fsx",
    "HYPERPOD_KIT_WHY": "it is stale",
    "HYPERPOD_KIT_ASKED_BY": "repair of mount fsx",
    "HYPERPOD_KIT_OWNER": "",
}


def shown(*entries: Mapping[str, Any]) -> list[Action]:
    return list(actions.parse_audited_actions([json.dumps(entry) for entry in entries]))


def test_what_root_s_programs_wrote_is_shown() -> None:
    (one,) = shown(OURS)
    assert one.to_line() == "2027-01-15T08:00:00Z  unmounted /fsx, asked by repair of mount fsx: it is stale"
    (sweep,) = shown({**OURS, "_UID": "412", "_SYSTEMD_UNIT": "hyperpod-kit-sweep.service"})
    assert sweep.unit == "hyperpod-kit-sweep.service"


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"_UID": "4001", "_SYSTEMD_UNIT": "slurmstepd.scope"}, id="a job of another user"),
        pytest.param(
            {"_UID": "4001", "_SYSTEMD_UNIT": "user@4001.service", "_SYSTEMD_USER_UNIT": "hyperpod-kit-sweep.service"},
            id="a unit of the user's own manager",
        ),
        pytest.param({"_EXE": "/usr/bin/sudo", "_SYSTEMD_UNIT": "session-3.scope"}, id="his words through sudo"),
        pytest.param({"_EXE": "/usr/bin/su"}, id="the same of su"),
        pytest.param({"_EXE": "/home/a/python3/x"}, id="a directory that is called python3"),
        pytest.param({"_EXE": ["/usr/bin/python3", "/usr/bin/sudo"]}, id="two programs"),
        pytest.param({"_UID": ["0", "4001"], "_SYSTEMD_UNIT": ""}, id="two users"),
        pytest.param({"_TRANSPORT": "stdout"}, id="what a program of root's printed"),
        pytest.param({"_TRANSPORT": "syslog"}, id="a line for syslog"),
        pytest.param({"MESSAGE_ID": "0" * 32}, id="another kind of record"),
        pytest.param({"HYPERPOD_KIT_ACTION": None}, id="no action"),
        pytest.param({"HYPERPOD_KIT_ACTION": ["requeued", "drained"]}, id="two actions"),
        pytest.param({"__REALTIME_TIMESTAMP": "soon"}, id="no time"),
    ],
)
def test_what_others_wrote_is_not(forged: Dict[str, Any]) -> None:
    assert shown({**OURS, **forged}) == []


@pytest.mark.parametrize("line", ["", "{", "[]", "7", '"x"', "[" * 100_000, '{"a":' * 50_000, "x" * 1_000_000])
def test_a_line_that_is_no_record_ends_nothing(line: str) -> None:
    assert list(actions.parse_audited_actions([line, json.dumps(OURS)])) == shown(OURS)


def test_words_of_a_record_move_no_cursor_and_begin_no_line() -> None:
    (one,) = shown(
        {
            **OURS,
            "HYPERPOD_KIT_ON": "job 1\n2027-01-15T08:00:00Z  drained node b\x1b[2J\u202e" + "x" * 9999,
            "HYPERPOD_KIT_WHY": [27, 91],
            "HYPERPOD_KIT_OWNER": {"a": 1},
        }
    )
    line = one.to_line()
    assert line.isprintable() and len(line) < 3 * LONGEST and (one.why, one.owner) == ("", "")


class Journal:
    """journalctl's answer."""

    target = ""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.answer = code, out, err
        self.argv: Sequence[str] = ()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> Completed:
        self.argv = argv
        return Completed(argv, *self.answer)


def test_the_journal_is_asked_for_root_s_records_and_for_not_too_many() -> None:
    journal = Journal(0, json.dumps(OURS) + "\n", "")
    assert len(actions.read_audited_actions_from_journal(cast(Any, journal), 1_700_000_000.5).actions) == 1
    for word in ("_UID=0", f"MESSAGE_ID={audit.MESSAGE_ID}", f"--lines={MOST}", "--since=@1700000000"):
        assert word in journal.argv


def test_a_journal_that_may_not_be_read_is_no_empty_one() -> None:
    """An admin who is shown nothing must not take it for `nothing was done`."""
    hint = "Hint: You are currently not seeing messages from other users and the system."
    with pytest.raises(NodeError) as raised:
        actions.read_audited_actions_from_journal(cast(Any, Journal(0, "", hint)), 0.0)
    assert raised.value.hint == "sudo hyperpod-kit node actions"
    for words in ("Failed to open files", "No journal files were found."):
        with pytest.raises(Unreachable, match=r"Failed to open|no journal"):
            actions.read_audited_actions_from_journal(cast(Any, Journal(1, "", words)), 0.0)
    in_part = actions.read_audited_actions_from_journal(
        cast(Any, Journal(1, json.dumps(OURS) + "\n", "Bad message")), 0.0
    )
    assert len(in_part.actions) == 1 and in_part.problem == "journalctl: Bad message"


@pytest.mark.parametrize("text, found", [("45s", 955.0), ("2h", 0.0), ("@17", 17.0)])
def test_since(text: str, found: float) -> None:
    assert actions.parse_since(text, 1000.0) == found


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1h; reboot", "@-1", "@1e9", "\u0661h", "9" * 30 + "d"])
def test_since_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError):
        actions.parse_since(text, 1000.0)


NODE = NodeTarget("i-0a", "workers", "", "10.0.0.1", "Running")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{}",
        "[" * 100_000,
        '{"actions": 7}',
        '{"actions": {"a": 1}}',
        '{"actions": [' + "[" * 2000,
        "Welcome!\n{",
        "x" * 5_000_000 + '{"actions": []}' + "x" * 5_000_000,
    ],
)
def test_a_hostile_answer_is_that_node_s_own_error(answer: str) -> None:
    told = parse_actions_response(NODE, Completed((), 0, answer, ""))
    assert told.error and told.actions == () and told.error.isprintable()


def test_odd_values_in_an_answer_are_only_words() -> None:
    raw: list[Any] = [
        7,
        None,
        {"at": "x", "action": {"a": "\x1b]0;owned\x07"}, "on": None, "why": 5},
        {"at": 1e400, "action": "requeued"},
        {"at": True},
        {"at": -5},
        *[{"at": 1.0}] * 2000,
    ]
    told = parse_actions_response(NODE, Completed((), 0, "Welcome!\n" + json.dumps({"actions": raw[::-1]}), ""))
    assert not told.error and 0 < len(told.actions) <= MOST
    assert all(one.to_line().isprintable() for one in told.actions)


def test_a_node_of_an_older_release_says_so() -> None:
    assert "release" in parse_actions_response(NODE, Completed((), 2, "", "invalid choice: 'actions'")).error
