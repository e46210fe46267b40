"""What in a trainer's own file, beside the batch script that starts it, will keep captures in memory from being of use:
the arguments of `Manager(…)`.

Only values that stand in the file as they are (`partners=True`, `every=10`) are judged; nothing of it is run.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import Callable, Iterator, List, NamedTuple, Optional

from hyperpod_kit.job.lint.lint_finding import LintFinding
from hyperpod_kit.job.lint.script import Command, Script

Reader = Callable[[str], Optional[str]]
"""The text of a file that a command names, None where it cannot be read."""

_RUN = re.compile(r"\bjob\s+run\b|\bsrun\b")
_SLOTS = 3
"""One that storage still takes, the newest that all ranks have, the one that comes in."""


class ManagerCall(NamedTuple):
    """`Manager(…)` at `line` of the trainer `file`, which `command` starts."""

    file: str
    line: int
    call: ast.Call
    command: Command

    def has(self, name: str) -> bool:
        return any(keyword.arg == name for keyword in self.call.keywords)

    def literal_of_keyword_or_none(self, name: str) -> object:
        """A value that stands there as it is, else None."""
        expressions = [keyword.value for keyword in self.call.keywords if keyword.arg == name]
        return expressions[0].value if expressions and isinstance(expressions[0], ast.Constant) else None

    def integer_of_keyword_or_none(self, name: str) -> Optional[int]:
        literal = self.literal_of_keyword_or_none(name)
        return literal if type(literal) is int else None

    @property
    def has_no_double_star_arguments(self) -> bool:
        """Whether all that it is given is written there: nothing comes by `**options`."""
        return all(keyword.arg for keyword in self.call.keywords)

    def finding(self, code: str, severity: str, message: str, hint: str) -> LintFinding:
        return LintFinding(code, severity, self.command.line, f"{self.file}:{self.line}: {message}", hint)


def find_manager_argument_problems(script: Script, read_file: Reader) -> Iterator[LintFinding]:
    """About each `Manager(…)` of the trainers that the script starts."""
    for made in _calls(script, read_file):
        yield from _find_wrong_save_intervals(made)
        yield from _slots(made)
        yield from _partners(made, script)


def _find_wrong_save_intervals(manager_call: ManagerCall) -> Iterator[LintFinding]:
    every, storage_every = (
        manager_call.integer_of_keyword_or_none("every"),
        manager_call.integer_of_keyword_or_none("storage_every"),
    )
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
            "memory, so training waits for more of them than it must",
            f"storage_every={max(1, storage_every // every) * every}",
        )


def _slots(made: ManagerCall) -> Iterator[LintFinding]:
    slots = made.integer_of_keyword_or_none("slots")
    if made.has("storage_every") and slots is not None and slots < _SLOTS:
        yield made.finding(
            "J032",
            "warning",
            f"slots={slots} with storage_every: while a save is being written to storage, those for memory are skipped",
            f"Leave slots away: it is {_SLOTS} then, which takes {_SLOTS} times a rank's state of /dev/shm",
        )


def _partners(made: ManagerCall, script: Script) -> Iterator[LintFinding]:
    if made.literal_of_keyword_or_none("partners") is not True:
        return
    option = script.option("--nodes")
    nodes_match = re.search(r"\s--nodes[= ](\d+)\b", made.command.text.split(" -- ")[0])
    nodes = nodes_match.group(1) if nodes_match else option.value if option else ""
    if nodes in ("1", "1-1"):
        yield made.finding(
            "J033",
            "warning",
            "partners=True on one node: there is no other node to hold copies, so its loss costs all that is not on "
            "storage",
            "Use two nodes or more, or leave partners away",
        )


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
    """Files of Python that this command starts as ranks."""
    if not _RUN.search(command.text):
        return []
    try:
        arguments = shlex.split(command.text)
    except ValueError:
        return []
    return [word for word in arguments if word.endswith(".py") and "$" not in word][:1]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
