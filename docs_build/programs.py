"""Whether a line of a bash block can be typed, program by program. Nothing is run.

What is ours, or part of the checkout, is checked: commands and options, make targets, files, extras, calls of AWS's
API. What is the system's is listed by name, so that a word that nobody knows is found.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from typing import Callable, Iterator, Optional

from docs_build.blocks import ROOT
from docs_build.command_lines import Checker
from docs_build.commands import PROGRAM

SYSTEMS = frozenset(
    """
    cat cd cp mkdir rm ls ln source . export eval test true set echo tee head tail jq grep sed kill chmod diff git ssh
    scp systemctl journalctl scontrol sinfo squeue scancel sbatch srun complete autoload compinit fish zsh bash
    sleep done uv conda
    """.split()  # noqa: SIM905
)
"""The system's own, or Slurm's: that they exist is not ours to prove."""

WRAPPERS = frozenset(("sudo", "exec", "time", "nohup", "until", "do"))
"""What stands before another command."""


class Lines:
    """Checks lines of shell. `checker` knows the commands of hyperpod-kit."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._groups = re.findall(r'^(\w+) = \["', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        self._makefile = (ROOT / "Makefile").read_text()
        self._known: dict[str, Callable[[list[str]], Optional[str]]] = {
            PROGRAM: lambda words: self._checker.problem_of(words[1:]) if words[1:] else None,
            "make": self._make,
            "./setup.sh": self._setup,
            "pip": self._pip,
            "python": self._python,
            "python3": self._python,
            "torchrun": self._python,
            "pytest": self._pytest,
            "aws": _aws,
        }

    def problems(self, text: str) -> Iterator[tuple[int, str]]:
        """(line, 0-based; what is wrong) for a block of shell."""
        start = 0
        whole = ""
        for number, line in enumerate(text.splitlines()):
            start = number if not whole else start
            whole += line.removesuffix("\\")
            if line.endswith("\\"):
                continue
            for command in self._commands(whole):
                problem = self._problem(command)
                if problem:
                    yield start, f"{shlex.join(command)}: {problem}"
            whole = ""

    def _commands(self, line: str) -> Iterator[list[str]]:
        """The simple commands of a line, those inside of $(…) too. Raises ValueError for open quotes."""
        if line.startswith("#"):
            return
        for inner in re.findall(r"[$<]\(([^()]*)\)", line):
            yield from self._commands(inner)
        lexer = shlex.shlex(re.sub(r"[$<]\([^()]*\)", "SUBSTITUTED", line), posix=True, punctuation_chars="|&;<>")
        lexer.commenters = "#"
        lexer.whitespace_split = True
        words: list[str] = []
        redirected = False
        for word in [*lexer, ";"]:
            if word and not set(word) - set("|&;"):
                if words:
                    yield words
                words = []
            elif word and not set(word) - set("<>"):
                redirected = True
            elif redirected:
                redirected = False
            else:
                words.append(word)

    def _problem(self, words: list[str]) -> Optional[str]:
        while words and (words[0] in WRAPPERS or re.fullmatch(r"[A-Za-z_]+=.*", words[0])):
            words = words[1:]
        if not words or words[0] in SYSTEMS:
            return None
        name = words[0].rpartition("/")[2] if words[0].endswith(("/python", "/python3")) else words[0]
        check = self._known.get(name)
        if check is None:
            return f"what is `{name}`? docs_build/programs.py knows no such program"
        return check(words)

    def _make(self, words: list[str]) -> Optional[str]:
        for word in words[1:]:
            variable, is_variable, _ = word.partition("=")
            if is_variable:
                if f"$({variable})" not in self._makefile:
                    return f"the Makefile does not use {variable}"
            elif not re.search(rf"^{re.escape(word)}:", self._makefile, re.MULTILINE):
                return f"the Makefile has no target {word}"
        return None

    def _setup(self, words: list[str]) -> Optional[str]:
        if words[1:2] == ["venv"]:
            return self._extras(words[2:])
        return None if words[1:] == ["system"] else "setup.sh takes `system`, or `venv GROUP…`"

    def _pip(self, words: list[str]) -> Optional[str]:
        for word in words[2:]:
            named = re.fullmatch(r"(?:hyperpod-kit|\.)\[(.*)\]", word)
            if named and (problem := self._extras(named[1].split(","))):
                return problem
        return None

    def _extras(self, names: list[str]) -> Optional[str]:
        unknown = [name for name in names if name not in self._groups]
        return f"pyproject.toml has no extra {', '.join(unknown)}" if unknown else None

    def _python(self, words: list[str]) -> Optional[str]:
        if "-m" in words:
            module = words[words.index("-m") + 1]
            if module.startswith("hyperpod_kit") and importlib.util.find_spec(module) is None:
                return f"there is no module {module}"
            return self._pytest(words[words.index("-m") + 1 :]) if module == "pytest" else None
        scripts = [word for word in words[1:] if word.endswith(".py")]
        missing = [name for name in scripts if "/" in name and not (ROOT / name).exists() and _ours(name)]
        return f"there is no {', '.join(missing)}" if missing else None

    def _pytest(self, words: list[str]) -> Optional[str]:
        missing = [
            word for word in words[1:] if word.startswith("tests/") and not (ROOT / word.split("::")[0]).exists()
        ]
        return f"there is no {', '.join(missing)}" if missing else None


def _ours(name: str) -> bool:
    """Whether a path is meant to be in the checkout: its first part is."""
    return (ROOT / name.split("/")[0]).exists()


def _aws(words: list[str]) -> Optional[str]:
    """A call of AWS's command line, against the API model of the installed botocore."""
    import botocore.session
    from botocore import xform_name

    plain = [word for word in words[1:] if not word.startswith("-")]
    if not plain or plain[0] in ("s3", "configure", "ssm"):
        return None  # commands of their own, without a model (`aws ssm start-session` has one, and a plugin)
    service, operation = plain[0], plain[1] if len(plain) > 1 else ""
    try:
        model = botocore.session.get_session().get_service_model(service)
    except Exception as err:  # botocore says which service it does not know, in an exception of several kinds
        return str(err)
    names = {xform_name(name, "-"): name for name in model.operation_names}
    if operation not in names:
        return f"{service} has no operation {operation}"
    shape = model.operation_model(names[operation]).input_shape
    known = {f"--{xform_name(member, '-')}" for member in (shape.members if shape else ())}
    known |= {"--cli-input-json", "--region", "--output", "--query", "--profile", "--endpoint-url", "--no-paginate"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"aws {service} {operation} has no option {', '.join(unknown)}" if unknown else None
