"""Rules about the arguments of `Manager(…)` that keep captures in memory from being of use. They stand in the trainer's
own file, which the batch script starts.

Only literal values (`partners=True`, `every=10`) are judged; nothing of the file is run.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import Callable, Iterator, List, NamedTuple, Optional

from hyperpod_kit.job.lint.lint_finding import LintFinding
from hyperpod_kit.job.lint.script import Command, Script

Reader = Callable[[str], Optional[str]]
"""reader(file that a command names) -> its text, None where it cannot be read."""

_RUN = re.compile(r"\bjob\s+run\b|\bsrun\b")
_SLOTS = 3
"""Slots for captures: one that is still written to storage, the newest that all ranks have, the one that comes in."""


class ManagerCall(NamedTuple):
    """`Manager(…)` at `line` of the trainer `file`, which `command` starts."""

    file: str
    line: int
    call: ast.Call
    command: Command

    def has(self, name: str) -> bool:
        """Return whether the call has this argument by name."""
        return any(keyword.arg == name for keyword in self.call.keywords)

    def literal_of_keyword_or_none(self, name: str) -> object:
        """Return the value of an argument that is a literal, else None."""
        expressions = [keyword.value for keyword in self.call.keywords if keyword.arg == name]
        if expressions and isinstance(expressions[0], ast.Constant):
            return expressions[0].value
        return None

    def integer_of_keyword_or_none(self, name: str) -> Optional[int]:
        """Return the value of an argument that is a literal int, else None."""
        literal = self.literal_of_keyword_or_none(name)
        if type(literal) is int:
            return literal
        return None

    @property
    def has_no_double_star_arguments(self) -> bool:
        """Whether the call shows all its arguments: none comes by `**options`."""
        return all(keyword.arg for keyword in self.call.keywords)

    def finding(self, code: str, severity: str, message: str, hint: str) -> LintFinding:
        """Return a finding about this call, at the line of the batch script that starts the trainer."""
        return LintFinding(code, severity, self.command.line, f"{self.file}:{self.line}: {message}", hint)


def find_manager_argument_problems(script: Script, read_file: Reader) -> Iterator[LintFinding]:
    """Yield the findings about each `Manager(…)` of the trainers that the script starts."""
    for made in _calls(script, read_file):
        yield from _find_wrong_save_intervals(made)
        yield from _slots(made)
        yield from _partners(made, script)


def _find_wrong_save_intervals(manager_call: ManagerCall) -> Iterator[LintFinding]:
    every = manager_call.integer_of_keyword_or_none("every")
    storage_every = manager_call.integer_of_keyword_or_none("storage_every")
    if (
        manager_call.has_no_double_star_arguments
        and manager_call.has("storage_every")
        and not manager_call.has("every")
    ):
        yield manager_call.finding(
            "J030",
            "error",
            "storage_every without every: Manager raises ValueError before the first step",
            "Manager(…, every=STEPS, storage_every=MORE STEPS)",
        )
    if every is not None and storage_every is not None and storage_every < every:
        yield manager_call.finding(
            "J030",
            "error",
            f"storage_every={storage_every} is less than every={every}: Manager raises ValueError",
            f"storage_every={every} or more, a multiple of it",
        )
    elif every and storage_every and storage_every % every:
        yield manager_call.finding(
            "J031",
            "warning",
            f"storage_every={storage_every} is no multiple of every={every}: saves for storage come between those for "
            "memory, so training waits for more saves than necessary",
            f"storage_every={max(1, storage_every // every) * every}",
        )


def _slots(made: ManagerCall) -> Iterator[LintFinding]:
    slots = made.integer_of_keyword_or_none("slots")
    if made.has("storage_every") and slots is not None and slots < _SLOTS:
        yield made.finding(
            "J032",
            "warning",
            f"slots={slots} with storage_every: while a save is being written to storage, those for memory are skipped",
            f"Leave out slots: the default is then {_SLOTS}, which takes {_SLOTS} times a rank's state of /dev/shm",
        )


def _partners(made: ManagerCall, script: Script) -> Iterator[LintFinding]:
    if made.literal_of_keyword_or_none("partners") is not True:
        return
    if _node_count(made.command, script) in ("1", "1-1"):
        yield made.finding(
            "J033",
            "warning",
            "partners=True on one node: no other node can hold copies, so the loss of the node loses everything that "
            "is not on storage",
            "Use two nodes or more, or leave out partners",
        )


def _node_count(command: Command, script: Script) -> str:
    """Return the value of --nodes of the command, else of the script, "" when neither has it."""
    match = re.search(r"\s--nodes[= ](\d+)\b", command.text.split(" -- ")[0])
    if match:
        return match.group(1)
    option = script.option("--nodes")
    if option is None:
        return ""
    return option.value


def _calls(script: Script, read: Reader) -> Iterator[ManagerCall]:
    for command in script.commands:
        for file in _trainers(command):
            text = read(file)
            try:
                tree = ast.parse(text or "")
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and _name(node.func) == "Manager":
                    yield ManagerCall(file, node.lineno, node, command)


def _trainers(command: Command) -> List[str]:
    """Return the file of Python that this command starts as ranks, if there is one."""
    if not _RUN.search(command.text):
        return []
    try:
        arguments = shlex.split(command.text)
    except ValueError:
        return []
    return [word for word in arguments if word.endswith(".py") and "$" not in word][:1]


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return getattr(function, "id", "")
