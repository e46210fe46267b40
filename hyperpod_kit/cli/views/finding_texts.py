"""Codes of findings with their messages, read from the source: `Finding(…)`, a reader's `wrong(…)`, `Pattern(…)`.

HPK-X000 in the configuration's rules and in the preflight, J000 in `job lint`, S000 in `job doctor`. The page of
findings and `hyperpod-kit explain` are made from them, so neither can differ from what the program prints.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import hyperpod_kit
from hyperpod_kit import environment
from hyperpod_kit.config.settings.findings import Finding

PACKAGE = Path(hyperpod_kit.__file__).parent
CODE = re.compile(r"(?:HPK-[A-Z]|[JS])\d{3}")
SEVERITIES = ("error", "warning", "info")
FIELDS = {
    "Finding": tuple(field.name for field in dataclasses.fields(Finding)),
    "LintFinding": ("code", "severity", "line", "message", "hint"),
    "DoctorFinding": ("code", "severity", "message", "line", "hint"),
}
"""Class of a finding -> the order of its arguments; the last two are `job`'s, which this package does not import."""
WRONG = ("code", "key", "message", "hint")
"""Arguments of a reader's `wrong(…)`, which makes a Finding of them. `Pattern(…)` has them too, but for the key."""
VARIABLES = {name for name in vars(environment) if name.startswith("HPK_")}
"""Constants whose value is their name."""
_TOPICS = {
    "HPK-A": "Secrets",
    "HPK-B": "Bucket of the bundle",
    "HPK-C": "Configuration file",
    "HPK-E": "EFS and S3 Files",
    "HPK-F": "FSx for Lustre and OpenZFS",
    "HPK-G": "Instance groups and controllers",
    "HPK-H": "Health checks of mounts",
    "HPK-I": "Metadata service",
    "HPK-K": "Cluster",
    "HPK-L": "Lifecycle modes and Slurm's state",
    "HPK-M": "Names and paths of mounts",
    "HPK-N": "NVMe scratch",
    "HPK-O": "Scripts and optional steps",
    "HPK-P": "Packages of mount clients",
    "HPK-R": "Requests to SageMaker",
    "HPK-S": "Mountpoint for S3",
    "HPK-U": "Users, homes and access points",
    "HPK-V": "AWS account",
    "J": "Batch script",
    "S": "Slurm's configuration",
}
"""First letters of a code -> the title that users see."""


@dataclass(frozen=True)
class FindingText:
    """What one place in the code reports under a code. What the program fills in stands in ‹›."""

    code: str
    severity: str
    message: str
    hint: str

    @property
    def topic(self) -> str:
        """The title that codes of the same letters share. Raises KeyError for letters without one."""
        return _TOPICS[self.code.rstrip("0123456789")]


def every_code() -> set[str]:
    """All codes that are written anywhere in the package, however they are used."""
    return {code for path in _sources() for code in re.findall(rf'"({CODE.pattern})"', path.read_text())}


def all_texts() -> list[FindingText]:
    """One for each distinct message of each code, in the order of the codes."""
    texts = {text: None for path in _sources() for text in _texts_in(path)}
    return sorted(texts, key=lambda text: text.code)


def texts_of(code: str) -> list[FindingText]:
    """Those of one code; none for a code that the program does not use. Parses only files that have it."""
    return [
        text for path in _sources() if f'"{code}"' in path.read_text() for text in _texts_in(path) if text.code == code
    ]


def _sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_bundle" not in path.parts)


def _texts_in(path: Path) -> Iterator[FindingText]:
    source = path.read_text()
    if not CODE.search(source):
        return
    tree = ast.parse(source)
    constants = _texts(tree)
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.Module)):
            continue
        names = {**constants, **_texts(function)}
        for call in _own_calls(function):
            order = FIELDS.get(_called(call), WRONG)
            arguments = {
                **dict(zip(order, call.args)),
                **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg},
            }
            values = {field: _text(value, names) for field, value in arguments.items()}
            if CODE.fullmatch(values.get("code", "")):
                yield _finding_text(values)


def _finding_text(values: dict[str, str]) -> FindingText:
    hint = values.get("hint", "")
    if not hint and "=" in values.get("line", ""):
        hint = f"slurm.conf: {values['line']}"
    severity = values.get("severity", "error").lower()
    if severity not in SEVERITIES:
        severity = "error"
    return FindingText(values["code"], severity, values.get("message", "").replace("{value}", "‹value›"), hint)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _own_calls(function: ast.AST) -> Iterator[ast.Call]:
    """Calls inside of a function (or of the module's own level), not of functions inside of it."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and isinstance(function, ast.FunctionDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            todo += ast.iter_child_nodes(node)


def _texts(scope: ast.AST) -> dict[str, str]:
    """Names that hold a text, such as `hint = "…"` above several findings, or a code of its own."""
    body = scope.body if isinstance(scope, ast.Module) else list(ast.walk(scope))
    return {
        target.id: _text(node.value, {})
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, (ast.Constant, ast.JoinedStr))
    }


def _text(node: ast.expr, names: dict[str, str]) -> str:
    """A text as a reader sees it: what is filled in later stands in ‹›."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else _filled(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, names)} / {_text(node.orelse, names)}"
    if isinstance(node, ast.Name) and node.id in VARIABLES:
        return node.id
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id.lower() if node.id in ("WARNING", "ERROR", "INFO") else f"‹{node.id}›")
    return _filled(node)


def _filled(node: ast.AST) -> str:
    value = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(value, ast.Call) and _called(value) == "counted":
        return _counted_text(value)
    while isinstance(value, (ast.Subscript, ast.Call)):
        value = value.value if isinstance(value, ast.Subscript) else (value.args[0] if value.args else value.func)
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    if name in VARIABLES:
        return name
    return f"‹{name.replace('_', ' ').strip().lower() or '…'}›"


def _counted_text(call: ast.Call) -> str:
    """Return the text of `counted(number, singular, plural)`: the number, and the noun of several."""
    number, *nouns = call.args
    plural = _text(nouns[-1], {})
    if len(nouns) == 1:
        plural += "s"
    return f"{_filled(number)} {plural}"
