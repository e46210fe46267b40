"""Nothing of these packages writes to a terminal but through its exits, which clean what others wrote."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator

import pytest

from tests.support.packages import PACKAGES, PRODUCT, modules, relative

EXITS = ("untrusted/terminal.py", "cli/terminal/output.py", "cli/terminal/clean_console.py")

ELSEWHERE = {
    "audit.py": "its one line is cleaned, and goes to a unit's log",
    "checkpoint/agent/flush/abandoned.py": "a process of the agent's; the agent reads its lines",
    "checkpoint/agent/process/slot_recovery.py": "the trainer's own output, to its owner",
    "checkpoint/agent/agent": "the agent's own log file",
    "checkpoint/agent/process/agent_": "the agent's own log file",
    "checkpoint/agent/flush/flush_users.py": "a child's stack trace, in the epilog's log",
    "checkpoint/agent/leader/leader.py": "the agent's own log file",
    "checkpoint/agent/process/order_executor.py": "the agent's own log file",
    "checkpoint/agent/partner/partner_copies.py": "the agent's own log file",
    "checkpoint/agent/partner/partner_wire.py": "the same",
    "checkpoint/agent/shm/shm_paths.py": "the trainer's own output, to its owner",
    "checkpoint/agent/wire/rpc.py": "the agent's own log file",
    "checkpoint/agent/process/worker.py": "the agent's own log file",
    "hyperpod_lab/checkpoint_bench/": "what a person measures on their own machine; no other's words",
    "hyperpod_lab/torture/": "the same",
    "job/step/container_starts.py": "a task's answer to the program that started it",
    "job/step/lifeline.py": "the job's own output, to its owner",
    "job/base/report.py": "the job's own output, to its owner",
    "job/wrapper/rank.py": "the job's own output, to its owner",
    "job/cli.py": "lines for srun in the task prolog; sbatch's own answer to its caller",
    "node/": "a unit's or a hook's output: a log; an admin's program cleans it when it shows it",
    "storage/bench/replay/": "a child, whose lines `storage bench` reads",
    "hyperpod_rehearsal/": "programs of their own inside machines, and the daemon's log",
}
"""Prefix of a path -> why what is written there needs no cleaning."""

CALLS = {
    "print",
    "pprint",
    "echo",
    "secho",
    "echo_via_pager",
    "progressbar",
    "print_exc",
    "print_exception",
    "Console",
    "breakpoint",
}
OF_CLICK = {"confirm", "prompt", "pause"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
WORDS = (*CALLS, *(f"click.{name}" for name in OF_CLICK), "std", "os.write", "err.show")
"""One of these stands in the text of each file that writes."""


def writers(path: Path) -> Iterator[str]:
    """Whatever in a file writes to a terminal by itself."""
    source = path.read_text()
    if not any(word in source for word in WORDS):
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        asks = name in OF_CLICK and ast.unparse(called) == f"click.{name}"
        if asks or (name in CALLS and not _of_a_console(called)):
            yield f"{relative(path)}:{node.lineno} {name}()"
        if name in ("write", "writelines") and isinstance(called, ast.Attribute) and _is_stream(called.value):
            yield f"{relative(path)}:{node.lineno} {ast.unparse(called)}()"
        if name == "write" and ast.unparse(called) == "os.write" and ast.unparse(node.args[0]) in ("1", "2"):
            yield f"{relative(path)}:{node.lineno} os.write()"
        if name == "show" and ast.unparse(called) == "err.show" and not node.args:
            yield f"{relative(path)}:{node.lineno} {ast.unparse(called)}()"


def _of_a_console(called: ast.expr) -> bool:
    """`screen.print(…)`: of a console that `make_console` made."""
    return (
        isinstance(called, ast.Attribute)
        and called.attr == "print"
        and ast.unparse(called.value) in ("screen", "make_console()", "self._console")
    )


def _is_stream(value: ast.expr) -> bool:
    """`sys.stdout`, `sys.stdout.buffer`."""
    return isinstance(value, ast.Attribute) and (
        value.attr in STREAMS or (value.attr == "buffer" and _is_stream(value.value))
    )


def watched() -> list[Path]:
    found = []
    for path in modules():
        place = relative(path)
        if place not in EXITS and not place.startswith(tuple(ELSEWHERE)):
            found.append(path)
    return found


def test_no_file_writes_past_the_exits() -> None:
    paths = watched()
    assert len(paths) > 600
    assert [place for path in paths for place in writers(path)] == []


def test_all_programs_that_show_what_others_wrote_are_watched() -> None:
    places = {relative(path) for path in watched()}
    wanted = {f"cli/nodes/{name}_command.py" for name in ("diagnose", "diff", "mounts")}
    wanted |= {f"cli/cluster/{name}_command.py" for name in ("events", "update")}
    wanted |= {"cli/bundle/policy_command.py"}
    wanted |= {
        "cli/terminal/command_ending.py",
        "cli/main.py",
        "job/program/cli_look.py",
        "job/status/attempt_table.py",
        "remote/diagnosis/diagnose.py",
    }
    wanted |= {f"checkpoint/commands/{name}.py" for name in ("cli", "inspection", "keep", "repair")}
    assert wanted <= places


@pytest.mark.parametrize(
    "line",
    [
        "print(1)",
        "click.echo(x)",
        "sys.stdout.write(x)",
        "sys.stderr.buffer.write(x)",
        "Console(file=f).print(x)",
        "rich.print(x)",
        "traceback.print_exc()",
        "os.write(2, x)",
        "err.show()",
        "click.confirm(x)",
    ],
)
def test_the_look_sees_each_way_to_write(tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, PRODUCT, tmp_path)
    (tmp_path / "a.py").write_text(f"{line}\n")
    assert list(writers(tmp_path / "a.py"))
