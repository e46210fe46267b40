"""One node, row or checkpoint that says odd things ends nothing for the others, and its line says what is odd."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.commands import cli as checkpoint_cli
from hyperpod_kit.cli.views import diff_rows
from hyperpod_kit.job import cli as job_cli
from hyperpod_kit.job.records import ledger_row
from hyperpod_kit.remote.diagnosis.diagnose import AwsNodeStatus, describe_diagnosis, diagnose
from hyperpod_kit.remote.diagnosis.installed_bundles import NodeBundle, query_bundles
from hyperpod_kit.remote.diagnosis.known_issues import CAUSES, LONGEST_TEXT, recognise, truncate_for_search
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Completed
from tests.hostile.checkpoints import put
from tests.hostile.test_words_on_a_terminal import Node
from tests.support.rows import share

DEEP = '{"a":' + "[" * 100_000
VALUES = [
    "5",
    '"x"',
    "[5]",
    '["x"]',
    "{}",
    "[[]]",
    "[{}]",
    "null",
    "true",
    "1e400",
    "-1",
    "1" * 4400,
    "NaN",
    '[{"status": "failed", "error": {"a": []}, "step": [], "hint": 5}]',
    '[{"state": {}, "name": [], "required": []}]',
]
ODD = [
    DEEP,
    "{",
    "[]",
    "{}{}",
    "\0",
    "\ud800",
    "",
    "5",
    '{"a": 1' + "x" * 1000,
    *(
        f'{{"ok": true, "{key}": {value}}}'
        for key in ("steps", "mounts", "ok", "finished_at", "bundle_id")
        for value in VALUES
    ),
]
GOOD = '{"ok": true, "steps": [], "mounts": []}'


def target(number: int) -> NodeTarget:
    return NodeTarget(f"i-{number}", "workers", "compute", "10.0.0.1", "Running")


@pytest.mark.parametrize("odd", ODD, ids=lambda text: ascii(text[:60]))
def test_diagnose_tells_of_the_others(odd: str) -> None:
    targets = [(target(number), AwsNodeStatus()) for number in range(3)]
    nodes = {"i-0": Node(GOOD, GOOD), "i-1": Node(odd, odd, odd + "\n" + odd), "i-2": Node(GOOD, GOOD)}
    first, strange, last = diagnose(targets, lambda one: nodes[one.instance_id])
    assert first.healthy and last.healthy
    json.dumps(strange.to_dict())
    assert strange.healthy or list(describe_diagnosis(strange))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (DEEP, "nested too deeply"),
        ('{"ok": true, "steps": 5}', "type int"),
        ('{"ok": true, "steps": ["x"]}', "1 of its 1 steps are not objects"),
        ('{"a":' + " " * (5 << 20) + "1}", "bytes of JSON"),
        ('{"ok": true, "steps": [' + "{}," * 300 + "{}]}", "has 301 steps"),
    ],
)
def test_its_line_says_what_is_odd(status: str, why: str) -> None:
    [one] = diagnose([(target(1), AwsNodeStatus())], lambda one: Node(status, GOOD))
    assert not one.healthy and why in "\n".join(describe_diagnosis(one))


def test_what_nobody_thought_of_is_the_nodes_own_trouble() -> None:
    class Worse(Node):
        def run(self, argv: Any, **_: Any) -> Completed:
            raise KeyError("\x1b]0;x\x07")

    nodes = {"i-0": Node(GOOD, GOOD), "i-1": Worse()}
    well, odd = diagnose(
        [(target(0), AwsNodeStatus()), (target(1), AwsNodeStatus())], lambda one: nodes[one.instance_id]
    )
    assert well.healthy and "cannot be read: KeyError" in "".join(describe_diagnosis(odd))
    _, bad = query_bundles([target(0), target(1)], lambda one: nodes[one.instance_id])
    assert "its answer cannot be read: KeyError" in bad.error


SCRIPT = "== current\n{current}\n== status\n{status}\n== identity\nx\n== sums\n== damaged\n== files\n== end\n"


@pytest.mark.parametrize(
    "said",
    [
        *(SCRIPT.format(current="abcd", status=odd) for odd in ODD),
        "== current\nx\n== status\n{}\n== end\n",
        "== status\n{}\n",
        "== end\n== status\n{}\n== current\nx\n",
        "== files\n" * 5000,
    ],
)
def test_diff_tells_of_the_others(said: str) -> None:
    good = SCRIPT.format(current="abcd", status='{"bundle_id": "abcd", "ok": true, "finished_at": 1}')
    nodes = {"i-0": Node(script=good), "i-1": Node(script=said)}
    first, strange = query_bundles([target(0), target(1)], lambda one: nodes[one.instance_id])
    assert first.current == "abcd"
    bundle: Any = type("Bundle", (), {"bundle_id": "abcd"})()
    for answer in (first, strange):
        assert diff_rows.node_row(bundle, answer).what == "node"
    json.dumps(strange.to_dict())


def test_a_clock_of_a_node_may_say_anything() -> None:
    bundle: Any = type("Bundle", (), {"bundle_id": "abcd"})()
    for moment in (1e11, 9e99, -1e300, float("nan"), float("inf")):
        row = diff_rows.node_row(bundle, NodeBundle(target(1), "abcd", "abcd", True, moment))
        assert row.state == "same"


VALUES = ["5", '"x"', "[5]", '{"a": {}}', "true", "1e400", "-1e300", "NaN", "[[1]]", "9" * 40]


@pytest.mark.parametrize("name", sorted(ledger_row.FIELDS))
@pytest.mark.parametrize("value", share(VALUES, 3))
def test_job_status_leaves_an_odd_row_out(
    tmp_path: Path, name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".hpk").mkdir()
    row = {"t": 1.5, "job": "7", "restart": 0, "event": "attempt", "attempt": "7.0.0", "from": "none", "step": 0}
    end = {"t": 9, "job": "7", "restart": 0, "event": "ended", "attempt": "7.0.0", "class": "done", "seconds": 7.5}
    odd = json.dumps(
        {**(end if name in ("seconds", "class", "lost", "first", "code", "reached", "begins") else row), name: "@"}
    ).replace('"@"', value)
    path = tmp_path / ".hpk" / "attempts.jsonl"
    path.write_text("\n".join([json.dumps(row), json.dumps(end), odd, DEEP, "[]", "{"]) + "\n")
    page = tmp_path / "page.html"
    assert job_cli.main(["status", "--root", str(tmp_path), "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert "7.0.0" in said and "done" in said and page.stat().st_size
    if ledger_row.problem(json.loads(odd)):
        assert f"row 3 of the ledger is ignored: its {name} is" in said


def test_a_ledger_that_is_no_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".hpk").mkdir()
    (tmp_path / ".hpk" / "attempts.jsonl").symlink_to("/dev/zero")
    program = "import sys; from hyperpod_kit.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "job", "status", "--root", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and "attempts.jsonl is a symbolic link to /dev/zero" in done.stderr


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_an_odd_checkpoint_does_not_hide_the_others(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = put(tmp_path, 1)
    odd_values: tuple[Any, ...] = ([], {}, "x", 5, None, True, [None], [[]], 1e400)
    for seq, odd in enumerate(odd_values, 2):
        put(tmp_path, seq, lambda body, odd=odd: body.update(shards=odd) if odd != 1e400 else body.update(metrics=5))  # type: ignore[misc]
    argv = [command, str(tmp_path)] + (["--latest", "1", "--dry-run"] if command == "prune" else [])
    assert checkpoint_cli.main(argv) in (0, 1)
    said = capsys.readouterr().out
    assert good in said and said.count("seq-") == 10


def test_hostile_text_is_searched_in_bounded_time() -> None:
    """8 MiB, as ssh lets through, made for the slowest way through each pattern. In a process that can be ended."""
    program = """
from hyperpod_kit.remote.diagnosis import known_issues
words = ["mount target ", "s3", "mount-s3 ", "modprobe ", "bad interpreter ", "exceeded ", "insufficient ", "x\\n"]
for word in words:
    for text in (word * (8 * 1024 * 1024 // len(word)), ("a " + word) * 2000 + "\\n"):
        list(known_issues.recognise(text))
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=120)


def test_no_pattern_repeats_without_a_bound() -> None:
    for cause in CAUSES:
        assert not any(sign in cause.pattern.replace(r"\.", "") for sign in (".*", ".+", "+", "*")), cause.code


def test_the_end_of_a_text_is_what_is_searched() -> None:
    last = "No space left on device"
    assert [known.cause.code for known in recognise("x" * 9_000_000 + "\n" + last)] == ["no-space"]
    assert len(truncate_for_search("x" * 9_000_000)) <= LONGEST_TEXT
