"""The layers of docs/design/architecture.md, held by the imports themselves."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Mapping, Set, Tuple

import pytest

from hyperpod_kit.model.mounts.kinds import KINDS
from tests.support.packages import PACKAGES, PRODUCT, TESTS, modules, package_of, relative

PACKAGE = PACKAGES[PRODUCT]

MAY_IMPORT: Dict[str, Set[str]] = {
    "__main__": {"cli"},
    "descriptors": set(),
    "environment": set(),
    "errors": {"exit_codes"},
    "exit_codes": set(),
    "renamed": set(),
    "extras": {"errors"},
    "version": set(),
    "model": {"untrusted"},
    "untrusted": {"descriptors", "errors"},
    "system": {"errors", "untrusted"},
    "audit": {"environment", "untrusted"},
    "command_line": {"errors", "untrusted"},
    "ending": {"errors", "exit_codes", "untrusted"},
    "run": {"errors"},
    "signing": set(),
    "s3": {"signing", "system", "untrusted"},
    "slurm": {"descriptors", "environment", "errors", "run", "untrusted"},
    "checkpoint.repository": {"environment", "errors", "renamed", "s3", "system", "untrusted"},
    "checkpoint.agent": {
        "audit",
        "checkpoint.repository",
        "descriptors",
        "environment",
        "errors",
        "exit_codes",
        "system",
        "untrusted",
        "version",
    },
    "checkpoint.commands": {
        "checkpoint.agent",
        "checkpoint.repository",
        "command_line",
        "ending",
        "errors",
        "exit_codes",
        "untrusted",
    },
    "node": {
        "audit",
        "checkpoint.agent",
        "command_line",
        "ending",
        "environment",
        "errors",
        "exit_codes",
        "model",
        "run",
        "s3",
        "signing",
        "slurm",
        "system",
        "untrusted",
    },
    "job": {
        "audit",
        "checkpoint.agent",
        "checkpoint.repository",
        "command_line",
        "descriptors",
        "ending",
        "environment",
        "errors",
        "exit_codes",
        "run",
        "slurm",
        "system",
        "untrusted",
    },
    "checkpoint": {
        "checkpoint.agent",
        "checkpoint.commands",
        "checkpoint.repository",
        "command_line",
        "ending",
        "environment",
        "errors",
        "exit_codes",
        "extras",
        "renamed",
        "slurm",
        "system",
        "untrusted",
        "version",
    },
    "checkpoint.adapters": {"checkpoint", "checkpoint.repository", "environment", "errors"},
    "data": {
        "checkpoint.repository",
        "command_line",
        "ending",
        "environment",
        "errors",
        "exit_codes",
        "extras",
        "s3",
        "system",
        "untrusted",
    },
    "aws": {"errors", "system"},
    "config": {"aws", "errors", "extras", "model", "system", "untrusted"},
    "bundle": {"aws", "config", "errors", "extras", "model", "run", "untrusted", "version"},
    "cluster": {"aws", "bundle", "config", "errors", "system", "untrusted"},
    "preflight": {"aws", "config", "errors", "model", "untrusted"},
    "infra": {"aws", "config", "errors", "model", "preflight"},
    "remote": {
        "aws",
        "cluster",
        "command_line",
        "config",
        "environment",
        "errors",
        "model",
        "run",
        "slurm",
        "system",
        "untrusted",
    },
    "storage.bench.replay": {
        "checkpoint",
        "checkpoint.agent",
        "command_line",
        "environment",
        "errors",
        "system",
        "untrusted",
    },
    "storage": {"aws", "checkpoint.repository", "errors", "extras", "job", "run", "slurm", "system", "untrusted"},
    "cli": {
        "aws",
        "bundle",
        "cluster",
        "command_line",
        "config",
        "ending",
        "environment",
        "errors",
        "exit_codes",
        "extras",
        "infra",
        "model",
        "preflight",
        "remote",
        "run",
        "storage",
        "untrusted",
        "version",
    },
    "hyperpod_rehearsal.standins": {"untrusted"},
    "hyperpod_rehearsal.agent": {"hyperpod_rehearsal.standins", "system", "untrusted"},
    "hyperpod_rehearsal": {
        "aws",
        "bundle",
        "config",
        "ending",
        "environment",
        "errors",
        "hyperpod_rehearsal.agent",
        "hyperpod_rehearsal.standins",
        "model",
        "run",
        "system",
        "untrusted",
    },
    "hyperpod_rehearsal.cli": {"cli", "command_line", "errors", "hyperpod_rehearsal", "untrusted"},
    "hyperpod_lab": {
        "checkpoint",
        "checkpoint.agent",
        "checkpoint.commands",
        "checkpoint.repository",
        "command_line",
        "data",
        "ending",
        "environment",
        "errors",
        "storage.bench.replay",
        "system",
        "untrusted",
        "version",
    },
}
"""Layer -> the layers that it imports besides itself, each of them somewhere. Arrows point down only.

Layers of hyperpod_kit go without its name. It imports none of the other distributions: its tables name their commands.
"""

VENDORED = (
    "audit",
    "command_line",
    "descriptors",
    "ending",
    "environment",
    "errors",
    "exit_codes",
    "run",
    "version",
    "untrusted",
    "system",
    "signing",
    "s3",
    "model",
    "slurm",
    "node",
    "job",
    "checkpoint.repository",
    "checkpoint.agent",
    "checkpoint.commands",
)
"""What ships to the nodes: standard library only, Python 3.8."""

OLD_DOORS = {"checkpoint.repository.agent_main", "checkpoint.repository.cli"}
"""Names that processes of earlier bundles know: each has nothing but the import of what it stands for."""

STANDALONE = ("hyperpod_rehearsal.standins", "hyperpod_rehearsal.agent")
"""Programs that run inside rehearsal machines: the same rule. What puts the stand-ins there is among them."""

OPTIONAL = {"boto3", "botocore", "xxhash"}
"""Third-party modules that vendored code may use when they can be imported."""

TORCH_ALLOWED = ("checkpoint", "checkpoint.adapters", "data", "hyperpod_lab", "storage.bench.replay")
GRAB_BAGS = {"utils", "util", "helpers", "helper", "common", "misc"}


def dotted(path: Path) -> str:
    """`checkpoint.manager` for a module of hyperpod_kit, `hyperpod_lab.rows` for one of another distribution."""
    package = package_of(path)
    parts = [package, *path.relative_to(PACKAGES[package]).with_suffix("").parts]
    return short(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def short(name: str) -> str:
    """A full name of ours, without `hyperpod_kit.`."""
    return "" if name == "hyperpod_kit" else name.removeprefix("hyperpod_kit.")


def layer(name: str) -> str:
    """`checkpoint.agent.persist.seal` -> `checkpoint.agent`, `node.mounts.efs` -> `node`, `` -> ``."""
    if name in OLD_DOORS:
        return "checkpoint.commands"
    parts = name.split(".")
    inner = [".".join(parts[:count]) for count in (3, 2)]
    return next((name for name in inner if name in MAY_IMPORT), parts[0])


@dataclasses.dataclass(frozen=True)
class Outline:
    """What these tests ask about a file, without its syntax tree: the package's trees together take much memory."""

    imports: List[str]
    classes: List[str]
    crowded: Dict[str, int]
    """The classes with behaviour that have more than MOST_ATTRIBUTES."""


@functools.lru_cache(maxsize=None)
def outline(path: Path) -> Outline:
    """A file is parsed once for all of these tests; what ships to nodes as Python 3.8 reads it."""
    source = path.read_text()
    tree = ast.parse(source, feature_version=(3, 8)) if ships_to_nodes(path) else ast.parse(source)
    found = Outline([], [], {})
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.imports.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found.imports.extend(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "collect_kind_objects":
            (package, _) = node.args
            assert isinstance(package, ast.Constant)
            found.imports.extend(f"{package.value!s}.{cls.__module__.rpartition('.')[2]}" for cls in KINDS.values())
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pkgutil.iter_modules":
            # `iter_modules(formats.__path__)`: all files of the folder are imported by their names.
            folder = ast.unparse(node.args[0]).partition(".")[0]
            found.imports.extend(f"{name}.{file.stem}" for name, file in _files_of(folder, found.imports))
        elif isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
            if not is_data(node) and len(attributes(node)) > MOST_ATTRIBUTES:
                found.crowded[node.name] = len(attributes(node))
    return found


def _files_of(package: str, imported: Iterable[str]) -> Iterator[Tuple[str, Path]]:
    """The files of an imported package of hyperpod_kit, each with the package's full name."""
    [name] = {name for name in imported if name.rpartition(".")[2] == package}
    folder = PACKAGES[PRODUCT].joinpath(*name.split(".")[1:])
    for file in sorted(folder.glob("*.py")):
        if file.name != "__init__.py":
            yield name, file


def imports(path: Path) -> List[str]:
    """Every module or name that a file imports, at its top or in a function, or by the names of the kinds of mounts."""
    return outline(path).imports


def is_ours(name: str) -> bool:
    return "." in name and name.partition(".")[0] in PACKAGES


def ships_to_nodes(path: Path) -> bool:
    """Whether a file of a package is read by a node's Python; of other files, none is."""
    if not any(package in path.parents for package in PACKAGES.values()):
        return False
    name = dotted(path)
    return layer(name) in VENDORED or name.startswith(STANDALONE)


def breaches(path: Path) -> Iterator[str]:
    """The rules that a file of the package breaks."""
    name = dotted(path)
    if len(path.read_text().splitlines()) > 800:
        yield f"{name} has more than 800 lines: more than one concern?"
    if path.stem in GRAB_BAGS:
        yield f"{name} is called after no concern"
    here = layer(name)
    if not here:
        return
    allowed = MAY_IMPORT[here] | {here}
    used = imports(path)
    for target in used:
        if is_ours(target) and layer(short(target)) not in allowed:
            yield f"{name} imports {target}: {here} may use {sorted(allowed)}"
        if target.split(".")[0] == "torch" and here not in TORCH_ALLOWED:
            yield f"{name} imports torch"
    imports_ours = any(map(is_ours, used))
    if path.name == "__init__.py" and here not in ("checkpoint", "data") and imports_ours:
        yield f"{name}: a package's __init__ imports no implementation"


def test_files_keep_the_rules() -> None:
    assert [breach for path in modules() for breach in breaches(path)] == []


@pytest.mark.parametrize(
    ("place", "text", "breach"),
    [
        ("slurm/long.py", "x = 1\n" * 801, "slurm.long has more than 800 lines: more than one concern?"),
        ("slurm/helpers.py", "", "slurm.helpers is called after no concern"),
        (
            "slurm/up.py",
            "def f():\n    import hyperpod_kit.node.machine.step\n",
            "slurm.up imports hyperpod_kit.node.machine.step:",
        ),
        ("slurm/dear.py", "from torch.nn import Module\n", "slurm.dear imports torch"),
        ("slurm/__init__.py", "from hyperpod_kit.slurm.squeue import x\n", "slurm: a package's __init__ imports no"),
    ],
)
def test_each_breach_is_seen(
    place: str, text: str, breach: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / place
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setitem(PACKAGES, "hyperpod_kit", tmp_path)
    (found,) = breaches(path)
    assert found.startswith(breach)


def unportable(path: Path) -> Iterator[str]:
    """What a file that ships to nodes has that a bare Python 3.8 does not."""
    try:
        used = imports(path)
    except SyntaxError as err:
        yield f"{path}: {err}"
        return
    if "from __future__ import annotations" not in path.read_text() and path.name != "__init__.py":
        yield f"{path} has annotations that are evaluated"
    for target in used:
        top = target.split(".")[0]
        if not (top in sys.stdlib_module_names or top in PACKAGES or top in OPTIONAL):
            yield f"{path} imports {target}"


def test_what_ships_to_nodes_needs_only_the_standard_library() -> None:
    paths = [path for path in modules() if ships_to_nodes(path)]
    assert len(paths) > 400
    assert [problem for path in paths for problem in unportable(path)] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("from __future__ import annotations\nmatch x:\n    case 1: pass\n", "Pattern matching is only supported"),
        ("from __future__ import annotations\nimport yaml\n", "imports yaml"),
        ("x: int\n", "has annotations that are evaluated"),
    ],
)
def test_what_a_bare_node_lacks_is_seen(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slurm/new.py"
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setitem(PACKAGES, "hyperpod_kit", tmp_path)
    (found,) = unportable(path)
    assert problem in found


def without_cycle(graph: Mapping[str, Iterable[str]]) -> None:
    """Fails with the names of a cycle."""
    done: Set[str] = set()

    def visit(name: str, trail: List[str]) -> None:
        assert name not in trail, f"cycle: {' -> '.join([*trail, name])}"
        if name not in done:
            for below in graph[name]:
                visit(below, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_layers_have_no_cycle() -> None:
    without_cycle(MAY_IMPORT)


def test_every_permission_is_used() -> None:
    used: Dict[str, Set[str]] = {name: set() for name in MAY_IMPORT}
    for path in modules():
        here = layer(dotted(path))
        if here:
            used[here] |= {layer(short(name)) for name in imports(path) if is_ours(name)} - {here}
    assert {name: MAY_IMPORT[name] - used[name] for name in used if MAY_IMPORT[name] - used[name]} == {}


def graph_of(files: Mapping[str, Path]) -> Dict[str, Set[str]]:
    """Module -> the modules that it imports, at its top or in a function."""
    graph: Dict[str, Set[str]] = {}
    for name, path in files.items():
        found = set()
        for target in imports(path):
            if target.partition(".")[0] not in PACKAGES:
                continue
            name_of_ours = short(target)
            found.add(name_of_ours if name_of_ours in files else name_of_ours.rpartition(".")[0])
        graph[name] = found & files.keys() - {name}
    return graph


def test_modules_have_no_cycle() -> None:
    without_cycle(graph_of({dotted(path): path for path in modules()}))


def test_a_cycle_through_a_function_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from hyperpod_kit import b\n")
    (tmp_path / "b.py").write_text("def late():\n    from hyperpod_kit.a import name\n")
    with pytest.raises(AssertionError, match="cycle: a -> b -> a"):
        without_cycle(graph_of({"a": tmp_path / "a.py", "b": tmp_path / "b.py"}))


MOST_FILES = 25
"""Of a folder, without its subfolders and without `__init__.py`."""

MOST_MODULES_OF_ONE_IMPORTER = 56
"""In hyperpod_kit: modules that one other alone imports, and that one lies in their folder. It only falls."""

STRATIFIED = ("checkpoint", "cli", "config", "data", "hyperpod_rehearsal", "job", "node", "preflight", "remote")
"""Packages whose folders import from each other in one direction."""

REGISTRIES = {"job.foreign"}
"""A folder that has what its subfolders build on, and the table of them."""


def folder_of(path: Path) -> str:
    """`checkpoint.agent.shm` for `checkpoint/agent/shm/lock.py`."""
    return short(".".join([package_of(path), *path.parent.relative_to(PACKAGES[package_of(path)]).parts]))


def product_modules() -> Dict[str, Path]:
    """The modules of hyperpod_kit by their names, without the `__init__` of packages."""
    found = [path for path in modules() if package_of(path) == PRODUCT and path.name != "__init__.py"]
    return {dotted(path): path for path in found}


def test_folders_are_small() -> None:
    sizes: Dict[str, int] = {}
    for path in modules():
        if path.name != "__init__.py":
            sizes[folder_of(path)] = sizes.get(folder_of(path), 0) + 1
    assert {folder: size for folder, size in sizes.items() if size > MOST_FILES} == {}


def test_few_modules_have_one_importer_in_their_own_folder() -> None:
    names = product_modules()
    importers: Dict[str, Set[str]] = {name: set() for name in names}
    for importer, used in graph_of(names).items():
        for name in used:
            importers[name].add(importer)
    lone = {name: next(iter(found)) for name, found in importers.items() if len(found) == 1}
    lone = {name: one for name, one in lone.items() if not one.endswith(".registry")}  # kinds, by their names
    same_folder = sorted(name for name, one in lone.items() if folder_of(names[name]) == folder_of(names[one]))
    assert len(same_folder) <= MOST_MODULES_OF_ONE_IMPORTER, same_folder


@pytest.mark.parametrize("package", STRATIFIED)
def test_folders_of_a_package_import_in_one_direction(package: str) -> None:
    files = [path for path in modules() if path.name != "__init__.py"]
    names = {dotted(path): path for path in files if dotted(path).startswith(f"{package}.")}
    graph: Dict[str, Set[str]] = {folder_of(path): set() for path in names.values()}
    for name, used in graph_of(names).items():
        here = folder_of(names[name])
        for folder in {folder_of(names[target]) for target in used} - {here}:
            if name not in OLD_DOORS and not (here in REGISTRIES and folder.startswith(f"{here}.")):
                graph[here].add(folder)
    without_cycle(graph)


def test_a_class_name_stands_once_in_the_package() -> None:
    places: Dict[str, List[str]] = {}
    for path in modules():
        for name in outline(path).classes:
            places.setdefault(name, []).append(dotted(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


MOST_ATTRIBUTES = 12
HUBS = {"Lifelines", "Mount", "MountOptions"}
"""Classes that have more attributes than that. None in checkpoint; what belongs together gets a class of its own."""


def attributes(of: ast.ClassDef) -> Set[str]:
    """What a class assigns to `self`, anywhere, and its annotated fields."""
    found = {
        node.target.id for node in of.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(of):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            found.add(node.attr)
    return found


def is_data(of: ast.ClassDef) -> bool:
    """A dataclass or a NamedTuple: a record of what belongs to one thing, however many fields that takes."""
    names = [node.func if isinstance(node, ast.Call) else node for node in of.decorator_list] + of.bases
    return any(isinstance(name, ast.Name) and name.id in ("dataclass", "NamedTuple") for name in names)


def test_no_class_with_behaviour_has_many_attributes() -> None:
    found = {name: count for path in modules() for name, count in outline(path).crowded.items()}
    assert {name: count for name, count in found.items() if name not in HUBS} == {}


def test_attributes_are_counted_wherever_they_are_set() -> None:
    lines = (
        "class A:",
        "    def f(self):",
        "        self.a, (self.b, *self.c) = x",
        "        self.d += 1",
        "        with y as self.e:",
        "            other.g = self.h",
    )
    tree = ast.parse("\n".join(lines)).body[0]
    assert isinstance(tree, ast.ClassDef) and attributes(tree) == set("abcde")


def test_the_control_page_is_made_of_values_with_names() -> None:
    tree = ast.parse((PACKAGE / "checkpoint/agent/shm/control_page.py").read_text())
    sizes = {node.name: len(attributes(node)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert max(sizes.values()) <= MOST_ATTRIBUTES and {"Page", "CaptureOrigin", "ShardFacts"} <= set(sizes)


BY_HAND = {
    "os.replace(": {"system/atomic_file.py", "untrusted/owned_directory.py"},
    "fcntl.flock(": {"storage/bench/measurements/probes.py", "system/file_lock.py"},
    '.partition(" - ")': {"system/mountinfo.py"},
    "fields[19]": {"system/process.py"},
}
"""What the operating system is asked in one place, and the few places that say why they do it themselves."""


@pytest.mark.parametrize("words", BY_HAND)
def test_the_operating_system_is_asked_in_one_place(words: str) -> None:
    found = {relative(path) for path in modules() if words in path.read_text()}
    assert found == BY_HAND[words], f"{words}: see hyperpod_kit/system"


OWN_SIGNALS = {
    "__main__.py": "cli/main.py, which it calls",
    "cli/main.py": "it asks terminal/command_ending.py for its exit code, and calls restore_sigint_if_ignored itself",
    "checkpoint/agent/flush/abandoned.py": "a child in a session of its own",
    "checkpoint/agent/agent_main.py": "an agent, which sets its handlers",
    "storage/bench/replay/__main__.py": "a child in a session of its own",
    "checkpoint/repository/agent_main.py": "an agent, which sets its handlers",
    "node/observe/prober.py": "a child in a session of its own",
    "hyperpod_rehearsal/agent/main.py": "a unit of a machine",
    "hyperpod_rehearsal/daemon.py": "it sets its handlers",
    "hyperpod_rehearsal/guardian.py": "it outlives every signal of its group",
    "hyperpod_rehearsal/machines/launch.py": "it becomes another program",
    "hyperpod_rehearsal/sandbox/sandbox_shim.py": "it answers at once, in place of a program of a node",
    "hyperpod_rehearsal/standins/__main__.py": "programs of a machine; what waits sets its handlers",
    "hyperpod_rehearsal/standins/step_retry/cluster_agent.py": "a unit of a machine",
    "job/__main__.py": "job.cli.main: the bytes of this file are those of builds before 0.1.0, and bundles share it",
    "storage/usage/scan.py": "a child that its parent ends",
}
"""Programs that Ctrl-C does not reach by way of `ending.run_program_ending_on_ctrl_c`, each with who ends them."""


def test_every_program_hears_ctrl_c_of_its_group() -> None:
    """Started by a shell's `&`, a program ignores SIGINT until it says otherwise: where it is entered, or a child."""
    programs = {relative(path): path.read_text() for path in modules() if '__name__ == "__main__"' in path.read_text()}
    silent = {name for name, text in programs.items() if "ending.run_program_ending_on_ctrl_c(" not in text}
    assert silent == OWN_SIGNALS.keys()
    assert "restore_sigint_if_ignored()" in programs["cli/main.py"]


def test_tests_are_one_package_for_each_distribution() -> None:
    """A module that can be imported under two names would be there twice, with two states."""
    files = [path for tests in TESTS for path in tests.rglob("*.py")]
    folders = {path.parent for path in files}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
    inside = {folder.name for folder in folders} - {tests.name for tests in TESTS}
    importing = re.compile(rf"^\s*(?:from|import)\s+(?:{'|'.join(sorted(inside))})\b", re.M)
    for path in files:
        if not importing.search(path.read_text()):
            continue
        wrong = {name.split(".")[0] for name in imports(path)} & inside
        assert not wrong, f"{path} imports {wrong} without the package around it"
