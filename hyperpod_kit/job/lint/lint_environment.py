"""Rules of `job lint` about the Python that the ranks run: whether it is the training environment of the nodes'
configuration (`hyperpod_kit.steps.training_environment`), and whether a job keeps one version of it."""

from __future__ import annotations

import re
import shlex
from typing import Any, Iterator, List, Optional

from hyperpod_kit.job.lint.lint_finding import LintFinding
from hyperpod_kit.job.lint.script import Command, Script
from hyperpod_kit.job.step import script_containers
from hyperpod_kit.system.mountinfo import is_same_or_below
from hyperpod_kit.untrusted.parse import parse_json_object

NODE_CONFIG = "/opt/hyperpod-kit/current/node_config.json"
"""What the bundle of a node has; a configuration in JSON has the same below `hyperpod_kit`."""

_STARTS_RANKS = re.compile(r"\bjob\s+run\b|(?:^|[;&|(]\s*|exec\s+)srun\b")
_ACTIVATES_VENV = re.compile(
    r"(?:^|[;&]\s*)(?:source|\.)\s+[\"']?([^\s\"';&]*(?:\$\([^)]*\)[^\s\"';&]*)?/bin/activate)\b"
)
_ACTIVATES_CONDA = re.compile(r"(?:^|[;&]\s*)(?:(?:conda|mamba|micromamba|source)\s+activate)\b\s*([^\s;&]*)")
_PYTHON = re.compile(r"(python[0-9.]*|torchrun|accelerate|deepspeed)")
_LINK = r"/(?:x86_64|aarch64|\$\(uname -m\)|\$\{?\w+\}?)/bin(?!/activate\b)"


def environment_directory(config_text: str, most: int) -> str:
    """Return the directory of the training environment that a configuration has, "" when it has none.

    Raises ValueError for what is no configuration.
    """
    config = parse_json_object(config_text, most)
    steps = _object(_object(config.get("hyperpod_kit", config)).get("steps", {}))
    environment = _object(steps.get("training_environment") or {})
    path, name = environment.get("path", ""), environment.get("name", "training")
    if not isinstance(path, str) or not isinstance(name, str):
        raise ValueError("its training environment has no path or name")
    if not path:
        return ""
    return f"{path.rstrip('/')}/{name}"


def _object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"an object was expected, found {type(value).__name__}")
    return value


def find_environment_problems(script: Script, directory: str) -> Iterator[LintFinding]:
    """Yield the findings about the Python of the ranks. `directory`: of the training environment; "" when the
    configuration has none, or is not known: then nothing is judged."""
    if not directory:
        return
    activated = False
    for command in script.commands:
        for place in _activated_places(command):
            activated = True
            if "$" not in place.replace("$(uname -m)", "") and not is_same_or_below(place, directory):
                yield _foreign_environment(command, place, directory)
        if re.search(re.escape(directory) + _LINK, command.text):
            activated = True
            yield _link_in_use(command, directory)
        program = _python_of_ranks(command)
        if program and not _is_of_environment(program, directory, activated):
            yield _foreign_python(command, program, directory)


def _is_of_environment(program: str, directory: str, activated: bool) -> bool:
    if program.startswith("/"):
        return is_same_or_below(program, directory)
    return activated


def _activated_places(command: Command) -> List[str]:
    places = [match.group(1) for match in _ACTIVATES_VENV.finditer(command.text)]
    return places + [match.group(1) or "conda's base" for match in _ACTIVATES_CONDA.finditer(command.text)]


def _python_of_ranks(command: Command) -> str:
    """Return the Python program that this command starts as ranks on the nodes themselves, "" for none."""
    if not _STARTS_RANKS.search(command.text) or "--container-image" in command.text:
        return ""
    try:
        words = shlex.split(command.text)
    except ValueError:
        return ""
    if "--" in words:
        words = words[words.index("--") + 1 :]
    if script_containers.container_started_by_command(words) is not None:
        return ""
    return _first_python(words) or ""


def _first_python(words: List[str]) -> Optional[str]:
    return next((word for word in words if _PYTHON.fullmatch(word.rpartition("/")[2]) and "$" not in word), None)


def _remedy(directory: str) -> str:
    return f"source {directory}/$(uname -m)/bin/activate"


def _foreign_environment(command: Command, place: str, directory: str) -> LintFinding:
    return LintFinding(
        "J034",
        "warning",
        command.line,
        f"{place} is not the configured training environment: a new node may not have it",
        _remedy(directory),
    )


def _foreign_python(command: Command, program: str, directory: str) -> LintFinding:
    return LintFinding(
        "J035",
        "warning",
        command.line,
        f"the ranks run {program}, which is not in the training environment {directory}",
        _remedy(directory),
    )


def _link_in_use(command: Command, directory: str) -> LintFinding:
    return LintFinding(
        "J036",
        "warning",
        command.line,
        f"a program of {directory} by the link's name: restarted ranks get another version once the link moves",
        f"{_remedy(directory)}, which keeps the version with which the job began",
    )
