"""Reads a batch script as sbatch does: the options of its #SBATCH lines, and the commands of its body."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

SHORT = {
    "-A": "--account",
    "-a": "--array",
    "-C": "--constraint",
    "-c": "--cpus-per-task",
    "-D": "--chdir",
    "-d": "--dependency",
    "-e": "--error",
    "-G": "--gpus",
    "-J": "--job-name",
    "-k": "--no-kill",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-s": "--oversubscribe",
    "-t": "--time",
    "-w": "--nodelist",
    "-x": "--exclude",
}
"""The short options that some rule looks at, with their long names (man sbatch)."""

HET = ("hetjob", "packjob", ":")
"""What stands between the components of a heterogeneous job: the first two in a script, `:` on the command line."""

_FLAGS = frozenset(
    (
        "--no-kill",
        "--requeue",
        "--no-requeue",
        "--exclusive",
        "--oversubscribe",
        "--contiguous",
        "--hold",
        "--auto-resume",
        "--overcommit",
        "--spread-job",
        "--use-min-nodes",
        "--wait",
    )
)
"""Options that stand alone: the next word is not their value."""


@dataclass(frozen=True)
class Option:
    """One option of an #SBATCH line, by its long name. `value` is "" when it has none; `line` counts from 1."""

    name: str
    value: str
    line: int


@dataclass(frozen=True)
class Command:
    """One command line of the body, continuation lines joined, comments taken away. `line`: of its first part."""

    text: str
    line: int

    @property
    def text_without_quoted_parts(self) -> str:
        """The text without quoted parts: the operators that remain are those of this shell."""
        return re.sub(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", "", self.text)


@dataclass(frozen=True)
class Script:
    """A parsed script. `misplaced`: #SBATCH lines behind the first command, which sbatch does not read."""

    text: str
    options: Tuple[Option, ...]
    commands: Tuple[Command, ...]
    misplaced: Tuple[int, ...]

    def option(self, name: str) -> Optional[Option]:
        """Return the last option with this long name, which is the one that counts, or None."""
        for option in reversed(self.options):
            if option.name == name:
                return option
        return None


def parse(text: str) -> Script:
    """Read a script as sbatch does: options end at the first line that is neither empty nor a comment."""
    options: List[Option] = []
    commands: List[Command] = []
    misplaced: List[int] = []
    joined, first = "", 0
    quoted = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not joined and line.startswith("#SBATCH"):
            if commands:
                misplaced.append(number)
            else:
                options += _options(line[len("#SBATCH") :], number)
            continue
        if not joined and (not stripped or stripped.startswith("#")):
            continue
        if not first:
            first = number
        # An argument in single quotes may be a script of its own, over several lines.
        quoted ^= line.count("'") % 2 == 1
        if stripped.endswith("\\") or quoted:
            joined += _continued_line(stripped, quoted)
            continue
        commands.append(Command((joined + stripped).strip(), first))
        joined, first = "", 0
    if joined:
        commands.append(Command(joined.strip(), first))
    return Script(text, tuple(options), tuple(commands), tuple(misplaced))


def _continued_line(stripped: str, quoted: bool) -> str:
    """Return a line that goes on in the next one, without its backslash; only between quotes the line break stays."""
    if stripped.endswith("\\"):
        stripped = stripped[:-1]
    if quoted:
        return stripped + "\n"
    return stripped + " "


def _options(text: str, line: int) -> List[Option]:
    try:
        arguments = shlex.split(text, comments=True)
    except ValueError:
        arguments = text.split()
    return options(arguments, line)


def options(arguments: Sequence[str], line: int) -> List[Option]:
    """Return the options among the arguments of an #SBATCH line, or of a call of sbatch."""
    arguments, parsed_options = list(arguments), []
    while arguments:
        word = arguments.pop(0)
        if word in HET:
            parsed_options.append(Option(word, "", line))
        if not word.startswith("-"):
            continue
        if word.startswith("--"):
            name, given, value = word.partition("=")
        else:
            name, value = SHORT.get(word[:2], word[:2]), word[2:].lstrip("=")
            given = value
        if not given and name not in _FLAGS and arguments and not arguments[0].startswith("-"):
            value = arguments.pop(0)
        parsed_options.append(Option(name, value, line))
    return parsed_options


def minutes(text: str) -> Optional[float]:
    """Return a time limit in minutes: `90`, `90:00`, `1:30:00`, `2-12`, `2-12:30:00`; None for no limit or nonsense."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        return None
    days, a, b, c = (int(part or 0) for part in match.groups())
    if match.group(1):
        return days * 1440 + a * 60 + b + c / 60
    if match.group(4):
        return a * 60 + b + c / 60
    return a + b / 60


def lines_of_variables_set(script: Script) -> Dict[str, int]:
    """Return the names of variables that the body sets (`NAME=…`, `export NAME=…`), each with its first line."""
    line_by_name: Dict[str, int] = {}
    for command in script.commands:
        for match in re.finditer(r"(?:^|[;&\s])(?:export\s+)?([A-Za-z_]\w*)=", command.text):
            line_by_name.setdefault(match.group(1), command.line)
    return line_by_name
