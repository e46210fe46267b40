"""Lock files of the training environment on their way into the bundle: each as it is, once it has been looked at.

Nodes install what a lock file says without asking further. So a requirement without a version and a hash, and a line
that names another file, are refused here, and by `validate` already. `pip-compile --generate-hashes`, `uv pip compile
--generate-hashes` and `uv export` write what is accepted.
"""

from __future__ import annotations

import re
from typing import Iterator, Optional

from hyperpod_kit import extras
from hyperpod_kit.config.rules.training_environment import ARCHITECTURES, AT
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import BundleError, Untrusted
from hyperpod_kit.model.optional_steps import requirements_bundle_path
from hyperpod_kit.untrusted import files

_LARGEST = 8 << 20
_OPTIONS = ("--index-url", "--extra-index-url", "--find-links", "--no-index", "--only-binary", "--no-binary")
_HASH = re.compile(r"\s--hash=sha(256|384|512):[0-9a-f]{64,128}(?=\s|$)")
_PINNED = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._ -]*\])?\s*(==\s*[^\s*;]+|@\s*(https?|file)://\S+)(?=[\s;]|$)"
)
_WITH_PASSWORD = re.compile(r"//[^/\s]*@")


def read_requirement_files(settings: Settings) -> Iterator[tuple[str, bytes]]:
    """Yield (path in the bundle, content) of each lock file. Raises BundleError when one is missing or not locked."""
    environment = settings.steps.training_environment
    if environment is None:
        return
    for architecture, name in environment.requirements.items():
        data = _read_lock_file(settings, name)
        problem = _problem_of_lock(data)
        if problem:
            raise BundleError(f"{name}: {problem}", hint=_HINT)
        yield requirements_bundle_path(architecture), data


_HINT = "uv pip compile --generate-hashes requirements.in -o requirements.lock"


def find_requirement_problems(settings: Settings) -> Iterator[Finding]:
    """Report as findings of the configuration why lock files cannot go into a bundle, at most one for each, and what
    they lack of the kit's own requirements."""
    environment = settings.steps.training_environment
    if environment is None:
        return
    for architecture, name in environment.requirements.items():
        if architecture not in ARCHITECTURES:
            continue
        at = f"{AT}.requirements.{architecture}"
        try:
            data = _read_lock_file(settings, name)
        except BundleError as err:
            yield Finding("HPK-O052", at, f"no lock file: {err.message}", "Put the file there, or correct its name")
            continue
        problem = _problem_of_lock(data)
        if problem:
            yield Finding("HPK-O053", at, f"{name} is not locked: {problem}", f"Lock it: {_HINT}")
            continue
        missing = _missing_requirements_of_kit(data)
        if missing:
            yield Finding(
                "HPK-O054",
                at,
                f"{name} lacks {', '.join(missing)}, without which the command hyperpod-kit does not start",
                "Add what hyperpod-kit requires to requirements.in, and lock again",
                WARNING,
            )


def _read_lock_file(settings: Settings, name: str) -> bytes:
    path = settings.directory / name
    try:
        return files.read_file_or_pipe(str(path), _LARGEST)
    except (OSError, Untrusted, ValueError) as err:
        reason = str(err)
        if isinstance(err, OSError) and err.strerror:
            reason = err.strerror
        raise BundleError(f"{path}: {reason}", hint="put the lock file there, or correct its name") from err


def _problem_of_lock(data: bytes) -> Optional[str]:
    """Return what keeps nodes from installing exactly what the lock file says, with the line; None for nothing."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "it is not UTF-8 text"
    requirements = 0
    for number, line in _logical_lines(text):
        if _WITH_PASSWORD.search(line):
            return f"line {number} has a URL with a user or a password, which every user of a node could read"
        if line.startswith("-"):
            option = re.split(r"[\s=]", line, maxsplit=1)[0]
            if option not in _OPTIONS:
                return f"line {number}: {option} is not one of {', '.join(_OPTIONS)}"
            continue
        requirements += 1
        if not _PINNED.match(line):
            return f"line {number} does not name a single version: {line[:60]}"
        if not _HASH.search(line):
            return f"line {number} has no --hash=sha256:…: {line[:60]}"
    if not requirements:
        return "it has no requirement"
    return None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, text) of each line as pip reads it: joined at a backslash, without comments."""
    parts: list[str] = []
    first = 1
    for number, raw in enumerate(text.splitlines(), 1):
        if not parts:
            first = number
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        continues = line.endswith("\\")
        parts.append(line.rstrip("\\").strip())
        if continues:
            continue
        joined = " ".join(part for part in parts if part)
        parts = []
        if joined:
            yield first, joined
    joined = " ".join(part for part in parts if part)
    if joined:
        yield first, joined


def _missing_requirements_of_kit(data: bytes) -> list[str]:
    locked = {_normalized(line) for _, line in _logical_lines(data.decode())}
    return [requirement for requirement in extras.DEPENDENCIES if _normalized(requirement) not in locked]


def _normalized(requirement: str) -> str:
    """Return the name of a requirement as indexes compare it."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()
