"""Codes of findings, as the code itself writes them: `Finding(…)`, a reader's `wrong(…)`, a field's `Pattern(…)`.

HPK-X000 in the configuration's rules and in the preflight, J000 in `job lint`, S000 in `job doctor`.
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
FIELDS = "config.fields.fields"
CODE = re.compile(r"(?:HPK-[A-Z]|[JS])\d{3}")
SEVERITIES = ("error", "warning", "info")
WRONG = ("code", "key", "message", "hint")
"""Arguments of a reader's `wrong(…)`, which makes a Finding of them. `Pattern(…)` has them too, but for the key."""
VARIABLES = {name for name in vars(environment) if name.startswith("HPK_")}
"""Constants whose value is their name."""


@dataclass(frozen=True)
class Entry:
    """What one place in the code says. `module`: dotted, without the package; `about`: its docstring's first line."""

    code: str
    severity: str
    message: str
    hint: str
    module: str
    about: str


def every_code() -> set[str]:
    """All codes that are written anywhere in the package, however they are used."""
    return {code for path in _sources() for code in re.findall(rf'"({CODE.pattern})"', path.read_text())}


def entries() -> list[Entry]:
    """One for each distinct message of each code, in the order of the codes."""
    found = sorted({entry: None for path in _sources() for entry in _of(path)}, key=lambda entry: entry.code)
    topics = {_letters(entry): entry for entry in reversed(found) if entry.module != FIELDS}
    return [_under(entry, topics[_letters(entry)]) if entry.module == FIELDS else entry for entry in found]


def _letters(entry: Entry) -> str:
    return entry.code.rstrip("0123456789")


def _under(entry: Entry, topic: Entry) -> Entry:
    """A pattern of a field belongs to the topic that has its codes."""
    return dataclasses.replace(entry, module=topic.module, about=topic.about)


def _sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_bundle" not in path.parts)


def _of(path: Path) -> Iterator[Entry]:
    source = path.read_text()
    if not CODE.search(source):
        return
    tree = ast.parse(source)
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    about = (ast.get_docstring(tree) or "").split("\n")[0]
    fields = _fields(tree)
    constants = _texts(tree)
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.Module)):
            continue
        names = {**constants, **_texts(function)}
        for call in _own_calls(function):
            order = fields if _called(call) == "Finding" else WRONG
            given = {**dict(zip(order, call.args)), **{word.arg: word.value for word in call.keywords if word.arg}}
            said = {field: _text(value, names) for field, value in given.items()}
            if not CODE.fullmatch(said.get("code", "")):
                continue
            hint = said.get("hint") or (f"slurm.conf: {said['line']}" if "." in module and said.get("line") else "")
            severity = said.get("severity", "error").lower()
            yield Entry(
                said["code"],
                severity if severity in SEVERITIES else "error",
                said.get("message", "").replace("{value}", "‹value›"),
                hint,
                module,
                about,
            )


def _fields(tree: ast.Module) -> tuple[str, ...]:
    """The fields of the module's own class Finding, in order; else of the configuration's."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Finding":
            return tuple(
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )
    return tuple(field.name for field in dataclasses.fields(Finding))


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
    while isinstance(value, (ast.Subscript, ast.Call)):
        value = value.value if isinstance(value, ast.Subscript) else (value.args[0] if value.args else value.func)
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    if name in VARIABLES:
        return name
    return f"‹{name.replace('_', ' ').strip().lower() or '…'}›"
