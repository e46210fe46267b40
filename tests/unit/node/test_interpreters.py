"""What ships to the nodes, on the Python versions that nodes have: 3.8 (Ubuntu 20.04) to 3.13 (trixie).

On each interpreter that is here: every vendored module is imported with nothing of the site's; on the lowest and the
newest a node is created. Whatever is here, a check of the source itself holds every file to 3.8.
"""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from tests.support.interpreters import interpreters

HERE = interpreters()
EXTREMES = sorted({min(HERE), max(HERE)})

IMPORT_ALL = """\
import importlib, pathlib, sys
lib = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(lib))
for path in sorted(lib.rglob("*.py")):
    name = ".".join(path.relative_to(lib).with_suffix("").parts)
    if not name.endswith("__main__"):
        importlib.import_module(name[:-len(".__init__")] if name.endswith(".__init__") else name)
print(len(sys.modules), sorted({m.split(".")[0] for m in sys.modules} & {"click", "jinja2", "yaml", "boto3", "torch"}))
"""


@pytest.mark.parametrize(
    "version",
    [version if version in EXTREMES else pytest.param(version, marks=pytest.mark.full) for version in HERE],
    ids=lambda version: ".".join(map(str, version)),
)
def test_every_vendored_module_is_imported(version: Tuple[int, int], bundle: Any, tmp_path: Path) -> None:
    for place, data in bundle.library.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(data)
    done = subprocess.run(
        [HERE[version], "-I", "-S", "-B", "-W", "error::SyntaxWarning", "-c", IMPORT_ALL, str(tmp_path / "lib")],
        text=True,
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("version", EXTREMES, ids=lambda version: ".".join(map(str, version)))
def test_a_node_is_created(version: Tuple[int, int], make_sandbox: Any) -> None:
    """The whole creation, and what runs afterwards, on this interpreter; units are started by it too."""
    sandbox = make_sandbox("compute")
    lib = sandbox.install() / "opt/hyperpod-kit/current"

    def node(*args: str) -> Any:
        return sandbox.run([HERE[version], "-I", "-S", f"{lib}/lib", "node", *args], HPK_TEST_PYTHON=HERE[version])

    for changed in (True, False):
        done = node("apply", "--mode", "on_create", "--json")
        assert done.returncode == 0, done.stderr
        assert bool(json.loads(done.stdout)["changed"]) is changed
    assert json.loads(node("facts", "--json").stdout)["role"] == "compute"
    assert json.loads(node("plan", "--json").stdout)["changed"] == 0
    assert {mount["state"] for mount in json.loads(node("mounts", "--json").stdout)["mounts"]} == {"ok"}
    health = node("health", "--json")
    assert health.returncode == 0, health.stderr
    json.loads(health.stdout)
    assert node("gate").returncode == 0


# Names of the standard library that are younger than 3.8, or gone in 3.12 or 3.13: attribute of a module, or a module.
TOO_NEW = {
    "ast.unparse",
    "asyncio.Runner",
    "asyncio.TaskGroup",
    "asyncio.timeout",
    "asyncio.to_thread",
    "contextlib.aclosing",
    "contextlib.chdir",
    "dataclasses.KW_ONLY",
    "datetime.UTC",
    "enum.StrEnum",
    "enum.verify",
    "functools.cache",
    "glob.translate",
    "graphlib",
    "hashlib.file_digest",
    "inspect.get_annotations",
    "itertools.batched",
    "itertools.pairwise",
    "math.cbrt",
    "math.exp2",
    "math.lcm",
    "math.sumprod",
    "operator.call",
    "os.eventfd",
    "os.login_tty",
    "os.pidfd_open",
    "os.process_cpu_count",
    "os.setns",
    "os.splice",
    "os.unshare",
    "os.waitstatus_to_exitcode",
    "random.randbytes",
    "signal.pidfd_send_signal",
    "socket.recv_fds",
    "socket.send_fds",
    "sys.exception",
    "sys.monitoring",
    "sys.orig_argv",
    "sys.stdlib_module_names",
    "tomllib",
    "types.EllipsisType",
    "types.NoneType",
    "types.UnionType",
    "typing.Annotated",
    "typing.Concatenate",
    "typing.LiteralString",
    "typing.Never",
    "typing.NotRequired",
    "typing.ParamSpec",
    "typing.Required",
    "typing.Self",
    "typing.TypeAlias",
    "typing.TypeGuard",
    "typing.TypeVarTuple",
    "typing.Unpack",
    "typing.assert_never",
    "typing.assert_type",
    "typing.override",
    "typing.reveal_type",
    "zoneinfo",
}
GONE = {
    "asynchat",
    "asyncio.coroutine",
    "asyncore",
    "audioop",
    "binhex",
    "cgi",
    "cgitb",
    "collections.Mapping",
    "collections.Sequence",
    "configparser.SafeConfigParser",
    "crypt",
    "distutils",
    "formatter",
    "imp",
    "inspect.getargspec",
    "lib2to3",
    "locale.resetlocale",
    "nis",
    "nntplib",
    "parser",
    "pipes",
    "pkg_resources",
    "smtpd",
    "spwd",
    "ssl.match_hostname",
    "ssl.wrap_socket",
    "symbol",
    "telnetlib",
    "typing.io",
    "typing.re",
    "unittest.makeSuite",
    "uu",
    "xdrlib",
}
TOO_NEW_METHODS = {
    "add_note",
    "bit_count",
    "full_match",
    "hardlink_to",
    "is_junction",
    "is_relative_to",
    "removeprefix",
    "removesuffix",
    "with_stem",
}
TOO_NEW_KEYWORDS = {
    ("ArgumentParser", "exit_on_error"),
    ("Popen", "process_group"),
    ("Popen", "umask"),
    ("Popen", "user"),
    ("add_argument", "deprecated"),
    ("add_parser", "deprecated"),
    ("bisect_left", "key"),
    ("bisect_right", "key"),
    ("dataclass", "kw_only"),
    ("dataclass", "slots"),
    ("insort", "key"),
    ("md5", "usedforsecurity"),
    ("read_text", "newline"),
    ("rmtree", "dir_fd"),
    ("rmtree", "onexc"),
    ("sha256", "usedforsecurity"),
    ("shutdown", "cancel_futures"),
    ("write_text", "newline"),
    ("zip", "strict"),
}


def too_young(source: str) -> Iterator[str]:
    """What of a file's source an interpreter of 3.8 does not have, or one of 3.13 has no more. Annotations are text."""
    tree = ast.parse(source, feature_version=(3, 8))
    modules = {
        alias.asname or alias.name.split(".")[0]: alias.name
        for item in ast.walk(tree)
        if isinstance(item, ast.Import)
        for alias in item.names
    }
    annotations = {
        id(part)
        for item in ast.walk(tree)
        for where in ("annotation", "returns")
        if isinstance(getattr(item, where, None), ast.AST)
        for part in ast.walk(getattr(item, where))
    }
    for item in ast.walk(tree):
        if id(item) in annotations:
            continue
        for name in names_of(item, modules):
            if name in TOO_NEW | GONE or name.split(".")[0] in TOO_NEW | GONE:
                yield f"line {item.lineno}: {name}"  # type: ignore[attr-defined]
        if isinstance(item, ast.Attribute) and item.attr in TOO_NEW_METHODS:
            yield f"line {item.lineno}: .{item.attr}"
        if isinstance(item, ast.Call):
            called = item.func.attr if isinstance(item.func, ast.Attribute) else getattr(item.func, "id", "")
            yield from (
                f"line {item.lineno}: {called}({keyword.arg}=)"
                for keyword in item.keywords
                if (called, keyword.arg) in TOO_NEW_KEYWORDS
            )
        if (
            isinstance(item, ast.Subscript)
            and isinstance(item.value, ast.Name)
            and item.value.id in ("list", "dict", "tuple", "set", "frozenset", "type")
        ):
            yield f"line {item.lineno}: {item.value.id}[…] outside an annotation"


def names_of(item: ast.AST, modules: Dict[str, str]) -> List[str]:
    """Dotted names of the standard library that a node of the tree uses."""
    if isinstance(item, ast.Import):
        return [alias.name for alias in item.names]
    if isinstance(item, ast.ImportFrom) and item.module and not item.level:
        return [item.module, *(f"{item.module}.{alias.name}" for alias in item.names)]
    if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id in modules:
        return [f"{modules[item.value.id]}.{item.attr}"]
    return []


def test_no_file_needs_more_than_3_8(bundle: Any) -> None:
    checked = 0
    for place, data in bundle.installed_files.items():
        if place.endswith(".py"):
            checked += 1
            assert list(too_young(data.decode())) == [], place
    assert checked > 80


@pytest.mark.parametrize(
    "source, named",
    [
        ("import functools\n@functools.cache\ndef f(): ...", "functools.cache"),
        ("from functools import cache", "functools.cache"),
        ("import tomllib", "tomllib"),
        ("import os as o\no.pidfd_open(1)", "os.pidfd_open"),
        ("'a'.removeprefix('b')", ".removeprefix"),
        ("zip([], [], strict=True)", "zip(strict=)"),
        ("x = list[int]", "list[…]"),
        ("import imp", "imp"),
        ("from distutils import spawn", "distutils"),
    ],
)
def test_the_check_sees(source: str, named: str) -> None:
    assert any(named in found for found in too_young(source)), source


@pytest.mark.parametrize(
    "source", ["match x:\n    case 1: ...", "def f[T](x: T): ...", "try: ...\nexcept* ValueError: ..."]
)
def test_the_grammar_is_3_8(source: str) -> None:
    with pytest.raises(SyntaxError):
        list(too_young(source))


if (3, 8) in HERE:

    def test_what_only_an_interpreter_of_3_8_refuses() -> None:
        """The parser of 3.11 takes parenthesised context managers whatever it is told."""
        source = "with (open('a') as b, open('c') as d): ..."
        done = subprocess.run(
            [HERE[3, 8], "-c", f"compile({source!r}, 'x', 'exec')"], timeout=20, stderr=subprocess.PIPE, text=True
        )
        assert "SyntaxError" in done.stderr
