"""A call that may never be answered is made by `system/bounded_child.py` or `system/bounded_thread.py`.

Whoever forks, sets an alarm, or waits with a bound for a thread or for what a thread brings does it by hand. Each place
that does so is here, with the reason why it is none of the two forms; another one fails until it has one. A program
with a deadline is `run.py:LocalRunner`'s.
"""

from __future__ import annotations

import ast
import re
from typing import Dict, Iterator, Set

import pytest

from tests.support.packages import PRODUCT, modules, package_of, relative
from tests.support.syntax import nodes, tree_of

FORM = "one of the two forms"
LIFELONG = "a thread that works as long as its owner lives, and whose end is waited for"
LINES = "lines that threads bring as long as their process lives; nobody waits for a certain one"

BY_HAND: Dict[str, str] = {
    "checkpoint/agent/agent.py": "the loop of the agent, which takes what many threads bring",
    "checkpoint/agent/flush/flush_handover.py": "a process that is to go on when its caller has ended",
    "checkpoint/agent/flush/flush_users.py": "a child that becomes another user and is killed when it moves nothing",
    "checkpoint/capture/slots.py": LIFELONG,
    "checkpoint/repository/records/lease.py": LIFELONG,
    "checkpoint/run/user_policy.py": LIFELONG,
    "checkpoint/transfer/memory_copy.py": LIFELONG,
    "data/bulk/s5cmd.py": LIFELONG,
    "job/fan_out/command.py": LINES,
    "job/goodput/time_log.py": LIFELONG,
    "job/resume/proving_step.py": LINES,
    "job/run/series.py": LIFELONG,
    "job/step/step_note.py": "a write that nobody waits for: while it hangs, no other is begun",
    "job/wrapper/step_reporter.py": LIFELONG,
    "node/environments/maker.py": LIFELONG,
    "node/file_audit/supervisor.py": "a child that works for ever and gives signs of life",
    "node/observe/probe.py": "a program for all mounts at once, which says how far it came; it costs a check little",
    "node/observe/prober.py": "that program: the children are nobody's to wait for",
    "remote/connect/fan_out.py": "a thousand questions at once; each has its own deadline, and all are waited for",
    "system/bounded_child.py": FORM,
    "system/bounded_thread.py": FORM,
    "untrusted/owner.py": "a child that becomes another user and reports how it gets on; `untrusted` is below `system`",
}
"""Module -> why it is none of the two forms."""

FORKS_AND_ALARMS = {
    *("os.fork", "os.forkpty", "os.posix_spawn"),
    *("signal.alarm", "signal.setitimer", "faulthandler.dump_traceback_later"),
}
STARTS = re.compile(r"(^|\.)(Thread|Process)$")
NAMES = re.compile(r"(^|[._])threads?$")
"""What is a thread wherever it comes from."""
ASKING = re.compile(
    r"fork|posix_spawn|alarm|setitimer|traceback_later|Thread|multiprocessing|threads?\.|timeout=|\.result\(."
)
"""Stands in the text of each module that does it by hand, and in that of others."""


def ways(tree: ast.AST) -> Iterator[str]:
    """How a module bounds calls by hand."""
    threads = set(_names_of_threads(tree))
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            yield from sorted({f"{node.module}.{alias.name}" for alias in node.names} & FORKS_AND_ALARMS)
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name in FORKS_AND_ALARMS or (node.attr == "is_alive" and _is_thread(node.value, threads)):
                yield name
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            has_timeout = any(word.arg == "timeout" for word in node.keywords)
            is_bounded = has_timeout or bool(node.args)
            if {
                "join": is_bounded and _is_thread(node.func.value, threads),
                "get": has_timeout,
                "result": is_bounded,
            }.get(node.func.attr):
                yield ast.unparse(node.func)


def _is_thread(owner: ast.expr, threads: Set[str]) -> bool:
    return ast.unparse(owner) in threads or bool(NAMES.search(ast.unparse(owner)))


def _names_of_threads(tree: ast.AST) -> Iterator[str]:
    """To what a module assigns threads and processes of multiprocessing."""
    for node in nodes(tree):
        call = node.value if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(call, ast.Call) and STARTS.search(ast.unparse(call.func)):
            yield from map(ast.unparse, node.targets)


def hand_made() -> Dict[str, Set[str]]:
    found: Dict[str, Set[str]] = {}
    for path in modules():
        if package_of(path) == PRODUCT and ASKING.search(path.read_text()):
            found[relative(path)] = set(ways(tree_of(path)))
    return {name: found_ways for name, found_ways in found.items() if found_ways}


def test_whoever_bounds_a_call_by_hand_says_why() -> None:
    found = hand_made()
    assert found.keys() == BY_HAND.keys(), (
        "a call that may hang is bounded by hand: see the table of docs/design/architecture.md, or say here why not",
        {name: found_ways for name, found_ways in found.items() if name not in BY_HAND},
    )


@pytest.mark.parametrize(
    "text",
    [
        "import os\nif os.fork() == 0: work()",
        "from os import fork",
        "import signal\nsignal.alarm(5)",
        "import faulthandler\nfaulthandler.dump_traceback_later(5, exit=True)",
        "asking = threading.Thread(target=os.stat, args=(path,), daemon=True)\nasking.start()\nasking.join(5)",
        "self._asking = threading.Thread(target=work)\npoll_until(self._asking.is_alive, bool)",
        "process = multiprocessing.Process(target=work)\nprocess.join(timeout=5)",
        "threading.Thread(target=work).start()\nanswers.get(timeout=5)",
        "pool.submit(os.stat, path).result(5)",
        "for thread in self._threads:\n    thread.join(left)",
    ],
)
def test_each_way_is_seen(text: str) -> None:
    assert list(ways(ast.parse(text))) and ASKING.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "', '.join(words); separator.join(words); os.path.join(a, b)",
        "process.is_alive(owner)",
        "environment.get('HOME'); call.result()",
        "thread.start()\nthread.join()",
    ],
)
def test_what_has_no_bound_is_passed_over(text: str) -> None:
    assert list(ways(ast.parse(text))) == []
