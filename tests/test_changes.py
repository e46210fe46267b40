"""Nothing of this package changes what lies at a path but `untrusted.by_descriptor` and what holds descriptors.

A path is looked up anew by each call, and whoever may write to a directory on the way decides where it leads. The rule
is held by the calls themselves, under whatever name they were imported; what begins in /proc or /dev is the kernel's.
"""

from __future__ import annotations

import ast
import textwrap
from functools import lru_cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple, Type

import pytest

from tests.support.packages import modules, relative
from tests.support.syntax import nodes, tree_of

_IN_A_MACHINE = "a program inside a machine of a rehearsal, which imports nothing of ours, in directories of root's"

_FUSE = "a FUSE file system, whose answers are what the kernel asked for"

_TORCH = "torch's writer names its files itself, in a directory that is held and closed to others"

EXCEPTIONS: Dict[str, str] = {
    "checkpoint/adapters/huggingface.py:CheckpointedTraining._write_trainer_state_and_choose_resume_path": "in "
    "a temporary directory of `train`",
    "storage/bench/replay/replaying.py:Replaying._save_by_dcp": "torch's writer is measured, in a directory of "
    "the bench",
    "checkpoint/convert/formats/dcp.py:DcpFormat.write_state": _TORCH,
    "checkpoint/convert/formats/megatron.py:write": _TORCH,
    "hyperpod_lab/torture/failing/faulty_calls.py:FaultyCalls.__enter__": "it puts failing calls in the place of some",
    "hyperpod_lab/torture/damage/damage_special.py": "it lays links, FIFOs and devices into a directory of its own",
    "node/mounts/homes.py": "commands with a deadline, on a name that is not followed, or on the mount itself",
    "node/mounts/kinds/nvme.py:_make_directory": "in a sandbox alone, below a directory that is its own",
    "node/mounts/bring_up.py:_copy_home": "commands with a deadline, in a directory that root has closed",
    "hyperpod_rehearsal/sandbox/sandbox_shim.py": "it stands for programs of a sandbox, in its directory",
    "hyperpod_rehearsal/standins/access_point.py": _IN_A_MACHINE,
    "hyperpod_rehearsal/standins/passthrough/files.py": _FUSE,
    "hyperpod_rehearsal/standins/passthrough/filesystem.py": _FUSE,
    "hyperpod_rehearsal/standins/passthrough/proxy_state.py": _IN_A_MACHINE,
    "slurm/progress.py:ProgressWriter._write_to_wrapper_memory": "a memfd of the same user's wrapper, which is "
    "looked at once it is open",
    "storage/private_database.py:open_private_database": "SQLite names its files by itself, in a directory that "
    "is proved closed",
    "untrusted/by_descriptor.py": "it names what it holds by /proc/self/fd, or makes a copy below such a name",
}
"""`directory/`, `module` or `module:function` -> why it names by path what it changes. Twenty at most."""

MOST_EXCEPTIONS = 20

OF_OS = {
    *(
        "unlink",
        "remove",
        "rmdir",
        "removedirs",
        "rename",
        "renames",
        "replace",
        "mkdir",
        "makedirs",
        "link",
        "symlink",
    ),
    *("mkfifo", "mknod", "truncate", "chmod", "chown", "lchown", "lchmod", "open", "utime", "setxattr", "removexattr"),
}
OF_SHUTIL = {
    *("rmtree", "move", "copy", "copy2", "copyfile", "copytree", "copymode", "copystat", "chown", "unpack_archive"),
    *("make_archive",),
}
OF_PATH = {
    *("unlink", "rmdir", "mkdir", "touch", "write_text", "write_bytes", "symlink_to", "hardlink_to", "link_to"),
    *("chmod", "lchmod", "rename", "tofile", "extractall"),
}
FORBIDDEN = {
    *(f"os.{name}" for name in OF_OS),
    *(f"posix.{name}" for name in OF_OS),
    *(f"shutil.{name}" for name in OF_SHUTIL),
    *(f"pathlib.{kind}.{name}" for kind in ("Path", "PosixPath") for name in (*OF_PATH, "replace", "open")),
    *("sqlite3.connect", "logging.FileHandler", "torch.distributed.checkpoint.filesystem.FileSystemWriter"),
    *("logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler", "shelve.open", "dbm.open"),
    *("numpy.memmap", "numpy.lib.format.open_memmap", "urllib.request.urlretrieve", "pyarrow.OSFile"),
    *("pyarrow.output_stream", "pyarrow.create_memory_map", "pyarrow.dataset.write_dataset"),
    *("pyarrow.feather.write_feather", "pyarrow.fs.LocalFileSystem"),
}
OPENERS = {
    *("io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "zipfile.ZipFile", "tarfile.open"),
    *("builtins.open", "_io.open", "io.FileIO", "_io.FileIO", "gzip.GzipFile", "bz2.BZ2File", "lzma.LZMAFile"),
}
SAVERS = {
    "torch.save": 1,
    "torch.jit.save": 1,
    "numpy.save": 0,
    "numpy.savez": 0,
    "numpy.savez_compressed": 0,
    "numpy.savetxt": 0,
    "safetensors.torch.save_file": 1,
    "safetensors.numpy.save_file": 1,
    "pyarrow.parquet.write_table": 1,
    "pyarrow.parquet.ParquetWriter": 0,
    "pyarrow.csv.write_csv": 1,
}
"""What writes to a path or to a stream -> which argument says where."""

MODULES = {name.rpartition(".")[0] for name in FORBIDDEN} | {"builtins", "io"}
"""Of which nothing is taken by a name that the source does not show."""

TEMPORARY = {"tempfile.NamedTemporaryFile", "tempfile.TemporaryDirectory"}
"""They remove by its path, in the end, what they have made below `dir`. Others only make a new name there that nobody
can foresee."""

DESCRIPTORS = {"fd", "handle", "self._fd"}
"""What a call that takes both is given where it is no path."""

PROGRAMS = {
    *("cp", "mv", "rm", "install", "ln", "tar", "mkdir", "rmdir", "touch", "chmod", "chown", "tee", "dd", "truncate"),
    *("mkfifo", "mknod", "rsync", "unlink", "shred"),
}
"""Programs that change what lies at the paths that they are given."""

NO_PATHS = {"formatter.write_text": "click's", "slot.unlink": "a slot's", "memory.unlink": "a shared memory's"}
"""Methods of the same name that are not a path's."""

READING_FLAGS = {
    *(
        "O_RDONLY",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "O_NOCTTY",
        "O_CLOEXEC",
        "O_DIRECTORY",
        "O_PATH",
        "O_DIRECT",
        "O_NOATIME",
    ),
    *("READ", "DIRECTORY"),
}
"""Words of an open that changes nothing; those without `O_` are of `untrusted.files`."""


class Change(NamedTuple):
    """A call, or a mention, that changes what lies at a path."""

    module: str
    function: str
    line: int
    words: str


class Scanner:
    """Collects the changes of one module."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module = module
        self._names: Dict[str, str] = {}
        self._constants: Dict[str, ast.expr] = {}
        self._functions: List[str] = []
        self._own: Set[str] = set()
        """Names of streams, and of directories that this program has just made for itself."""
        self.changes: List[Change] = []
        self._visitors: Dict[Type[ast.AST], Callable[[Any], None]] = {
            ast.FunctionDef: self._inside,
            ast.AsyncFunctionDef: self._inside,
            ast.ClassDef: self._inside,
            ast.Call: self._visit_call,
            ast.List: self._visit_words,
            ast.Tuple: self._visit_words,
            ast.Attribute: self._visit_attribute,
            ast.Name: self._visit_name,
        }
        for node in nodes(tree):
            self._learn(node)
        self._visit(tree)

    def _visit(self, node: ast.AST) -> None:
        self._visitors.get(type(node), self._visit_children)(node)

    def _visit_children(self, node: ast.AST) -> None:
        for value in node.__dict__.values():
            if type(value) is list:
                for item in value:
                    if isinstance(item, ast.AST):
                        self._visit(item)
            elif isinstance(value, ast.AST):
                self._visit(value)

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self._names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if alias.name == "*" and node.module in MODULES:
                    self.changes.append(Change(self._module, "", node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._constants[node.targets[0].id] = node.value
            module = self._dotted(node.value)
            if module in MODULES:
                self._names[node.targets[0].id] = module

    # --- where --------------------------------------------------------------------------------------------------

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._functions.append(node.name)
        own = set(self._own)
        if not isinstance(node, ast.ClassDef):
            for inner in nodes(node):
                self._learn_own(inner)
        self._visit_children(node)
        self._own = own
        self._functions.pop()

    def _learn_own(self, node: ast.AST) -> None:
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            made = node.context_expr
            temporary = isinstance(made, ast.Call) and self._dotted(made.func) == "tempfile.TemporaryDirectory"
            if temporary and isinstance(made, ast.Call) and any(word.arg == "dir" for word in made.keywords):
                return
            if temporary:
                self._own.add(node.optional_vars.id)
            else:
                self._own.add(f"stream {node.optional_vars.id}")
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            (target, *_) = node.targets
            if isinstance(target, ast.Name) and self._dotted(node.value.func) == "io.BytesIO":
                self._own.add(f"stream {target.id}")

    def _dotted(self, node: ast.expr) -> Optional[str]:
        """`o.unlink` -> `os.unlink`, where `o` is os; None for what is no name of a module."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            above = self._dotted(node.value)
            return f"{above}.{node.attr}" if above else None
        if isinstance(node, ast.Call):
            return self._dotted_call(node)
        return None

    def _dotted_call(self, node: ast.Call) -> Optional[str]:
        """What `getattr(os, "unlink")`, `__import__("os")` and `importlib.import_module("os")` give."""
        constants = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        if function == "getattr" and constants:
            above = self._dotted(node.args[0])
            return f"{above}.{constants[0]}" if above else None
        if function == "__import__" or self._names_of(node.func) == "importlib.import_module":
            return constants[0] if constants else None
        return None

    def _names_of(self, node: ast.expr) -> Optional[str]:
        return None if isinstance(node, ast.Call) else self._dotted(node)

    def _report(self, node: ast.expr) -> None:
        function = ".".join(self._functions)
        self.changes.append(Change(self._module, function, node.lineno, ast.unparse(node)[:120]))

    # --- what ---------------------------------------------------------------------------------------------------

    def _visit_call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        if self._changes(node, name):
            self._report(node)
        if name is None and isinstance(node.func, ast.Attribute):
            self._visit(node.func.value)
        elif name not in FORBIDDEN and not (isinstance(node.func, ast.Name) and node.func.id == "open"):
            self._visit(node.func)
        for inner in (*node.args, *(word.value for word in node.keywords)):
            self._visit(inner)

    def _changes(self, node: ast.Call, name: Optional[str]) -> bool:
        if name in TEMPORARY:
            return any(word.arg == "dir" and not self._of_kernel_path(word.value) for word in node.keywords)
        if self._hides_its_name(node):
            return True
        if name in FORBIDDEN:
            return not self._harmless(node, name)
        if name in SAVERS:
            return not self._to_stream(node, SAVERS[name])
        if name in OPENERS and self._to_stream(node, 0):
            return False
        if name in OPENERS or (name is None and isinstance(node.func, ast.Name) and node.func.id == "open"):
            return not (self._reads(node) or self._of_kernel(node) or self._in_own(node))
        return name is None and isinstance(node.func, ast.Attribute) and self._path_method(node, node.func)

    def _hides_its_name(self, node: ast.Call) -> bool:
        """Whether it takes something of such a module by a name that the source does not show, or all of it."""
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        if function == "getattr":
            return self._dotted(node.args[0]) in MODULES and not isinstance(node.args[1], ast.Constant)
        return function == "vars" and bool(node.args) and self._dotted(node.args[0]) in MODULES

    def _visit_words(self, node: ast.List | ast.Tuple) -> None:
        """The words of a program."""
        first = node.elts[0] if len(node.elts) > 1 else None
        if isinstance(first, ast.Constant) and str(first.value).rpartition("/")[2] in PROGRAMS:
            self._report(node)
        self._visit_children(node)

    def _visit_attribute(self, node: ast.Attribute) -> None:
        if self._dotted(node) in FORBIDDEN:
            self._report(node)
        else:
            self._visit_children(node)

    def _visit_name(self, node: ast.Name) -> None:
        name = self._names.get(node.id, "builtins.open" if node.id == "open" else "")
        if isinstance(node.ctx, ast.Load) and (name in FORBIDDEN or name == "builtins.open"):
            self._report(node)

    def _harmless(self, node: ast.Call, name: str) -> bool:
        words = {word.arg for word in node.keywords}
        if {"src_dir_fd", "dst_dir_fd"} <= words or "dir_fd" in words:
            return True
        if name.endswith(".open") and name.split(".")[0] in ("os", "posix"):
            return self._reading_flags(node) or self._of_kernel(node) or self._in_own(node)
        if name.endswith(".utime") and node.args and ast.unparse(node.args[0]) in DESCRIPTORS:
            return True
        return self._of_kernel(node) or self._in_own(node)

    def _to_stream(self, node: ast.Call, position: int) -> bool:
        if len(node.args) <= position:
            return False
        target = node.args[position]
        return isinstance(target, ast.Name) and f"stream {target.id}" in self._own

    def _of_kernel(self, node: ast.Call) -> bool:
        """Whether the path begins, in the source, in a file system of the kernel's."""
        if not node.args:
            return False
        return self._of_kernel_path(node.args[0])

    def _of_kernel_path(self, path: ast.expr) -> bool:
        if self._dotted(path) == "os.devnull":
            return True
        if isinstance(path, ast.Call) and self._dotted(path.func) == "pathlib.Path" and path.args:
            path = path.args[0]
        if isinstance(path, ast.JoinedStr) and path.values:
            path = path.values[0]
        return isinstance(path, ast.Constant) and str(path.value).startswith(("/proc/", "/dev/"))

    def _in_own(self, node: ast.Call) -> bool:
        """Whether the path begins with a directory that this function has made for itself, and which is closed."""
        return bool(node.args) and self._begins_in_own(node.args[0])

    def _begins_in_own(self, path: ast.expr) -> bool:
        if isinstance(path, ast.Name):
            return path.id in self._own
        if isinstance(path, ast.BinOp):
            return self._begins_in_own(path.left)
        if isinstance(path, ast.Call) and path.args:
            return self._dotted(path.func) in ("pathlib.Path", "os.path.join") and self._begins_in_own(path.args[0])
        if isinstance(path, ast.JoinedStr) and path.values and isinstance(path.values[0], ast.FormattedValue):
            return self._begins_in_own(path.values[0].value)
        return False

    def _reading_flags(self, node: ast.Call) -> bool:
        return len(node.args) > 1 and self._only_reads(node.args[1])

    def _only_reads(self, flags: ast.expr) -> bool:
        if isinstance(flags, ast.BinOp) and isinstance(flags.op, ast.BitOr):
            return self._only_reads(flags.left) and self._only_reads(flags.right)
        if isinstance(flags, ast.Call) and isinstance(flags.func, ast.Name) and flags.func.id == "getattr":
            return isinstance(flags.args[1], ast.Constant) and flags.args[1].value in READING_FLAGS
        if isinstance(flags, ast.Name) and flags.id in self._constants:
            return self._only_reads(self._constants[flags.id])
        return (self._dotted(flags) or "").rpartition(".")[2] in READING_FLAGS

    @staticmethod
    def _reads(node: ast.Call) -> bool:
        mode: Optional[ast.expr] = node.args[1] if len(node.args) > 1 else None
        for word in node.keywords:
            if word.arg == "mode":
                mode = word.value
            if word.arg == "fileobj":
                return True
        return mode is None or (isinstance(mode, ast.Constant) and not set(str(mode.value)) & set("wax+"))

    def _path_method(self, node: ast.Call, func: ast.Attribute) -> bool:
        if self._of_kernel(ast.Call(func, [func.value], [])) or self._begins_in_own(func.value):
            return False
        if func.attr == "replace":
            changes = len(node.args) == 1 and not node.keywords
        elif func.attr == "open":
            modes = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "mode")]
            changes = any(isinstance(mode, ast.Constant) and _writes(mode.value) for mode in modes)
        else:
            changes = func.attr in OF_PATH
        return changes and ast.unparse(func) not in NO_PATHS


def _writes(mode: object) -> bool:
    return isinstance(mode, str) and set(mode) <= set("rwaxbt+") and bool(set(mode) & set("wax+"))


def changes_of(module: str, source: str) -> List[Change]:
    return Scanner(module, ast.parse(source)).changes


@lru_cache(maxsize=None)
def all_changes() -> Tuple[Change, ...]:
    """Of every module of the packages, found once for all tests here."""
    return tuple(change for path in modules() for change in Scanner(relative(path), tree_of(path)).changes)


def excepted(change: Change) -> Optional[str]:
    """The exception that a change is covered by."""
    folder = change.module.rpartition("/")[0] + "/"
    for key in (folder, change.module, f"{change.module}:{change.function}"):
        if key in EXCEPTIONS:
            return key
    return None


def test_nothing_is_changed_by_path() -> None:
    remaining = [change for change in all_changes() if excepted(change) is None]
    lines = [f"{change.module}:{change.line} {change.words}" for change in remaining]
    assert not lines, "see untrusted/by_descriptor.py:\n" + "\n".join(lines)


def test_exceptions_are_few_and_each_has_a_reason() -> None:
    assert len(EXCEPTIONS) <= MOST_EXCEPTIONS
    assert [key for key, reason in EXCEPTIONS.items() if len(reason.split()) < 4] == []
    used = {excepted(change) for change in all_changes()}
    assert EXCEPTIONS.keys() - used == set(), "it changes nothing by path any more"


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.unlink(x)",
        "import os as o\no.remove(x)",
        "from os import rename as r\nr(x, y)",
        "import posix\nposix.unlink(x)",
        "import os\nstack.callback(os.unlink, x)",
        "from shutil import rmtree\nfor step in (rmtree,): step(x)",
        "import shutil\nshutil.rmtree(x, ignore_errors=True)",
        "import os\nos.makedirs(x, exist_ok=True)",
        "import os\nos.rename(x, y, src_dir_fd=d)",
        "import os\nos.open(x, os.O_WRONLY | os.O_CREAT)",
        "import os\nos.open(x, flags)",
        "import os\n_FLAGS = os.O_RDWR | os.O_CLOEXEC\nos.open(x, _FLAGS)",
        "import os\nos.chmod(x, 0o644)",
        "open(x, 'w')",
        "open(x, mode='ab')",
        "open(x, mode)",
        "open(x, 'r+b')",
        "import io\nio.open(x, 'x')",
        "import gzip\ngzip.open(x, 'wt')",
        "import tarfile\ntarfile.open(x, 'w')",
        "x.unlink()",
        "x.parent.mkdir(parents=True, exist_ok=True)",
        "(x / 'y').write_text(z)",
        "x.with_name('y').write_bytes(z)",
        "x.open('w')",
        "x.open(mode='a')",
        "x.rename(y)",
        "x.replace(y)",
        "x.touch()",
        "from pathlib import Path\nPath.unlink(x)",
        "from pathlib import Path\nPath(x).symlink_to(y)",
        "import sqlite3\nsqlite3.connect(x)",
        "import torch\ntorch.save(value, x)",
        "import numpy as np\nnp.save(x, value)",
        "import os, tempfile\ndef f():\n    with tempfile.TemporaryDirectory(dir=x) as t:\n        os.unlink(t + '/a')",
        "from torch.distributed.checkpoint.filesystem import FileSystemWriter\nsave(a, writer=FileSystemWriter(x))",
        "import os\ngetattr(os, 'unlink')(x)",
        "import os\ngetattr(os, name)(x)",
        "import os\nvars(os)['unlink'](x)",
        "__import__('os').unlink(x)",
        "import importlib\nimportlib.import_module('shutil').rmtree(x)",
        "from os import *\nunlink(x)",
        "import os\no = os\no.unlink(x)",
        "import builtins\nbuiltins.open(x, 'w')",
        "make = open\nmake(x, 'w')",
        "import io\nio.FileIO(x, 'w')",
        "import codecs\ncodecs.open(x, 'w')",
        "import os\nos.utime(x)",
        "import tempfile\ntempfile.NamedTemporaryFile(dir=x)",
        "array.tofile(x)",
        "import numpy\nnumpy.memmap(x, mode='w+')",
        "import pyarrow.parquet as pq\npq.write_table(t, x)",
        "import pyarrow\npyarrow.OSFile(x, 'w')",
        "import subprocess\nsubprocess.run(['cp', x, y])",
        "runner.run(['/bin/rm', '-rf', x])",
        "archive.extractall(x)",
        "import logging.handlers\nlogging.handlers.RotatingFileHandler(x)",
    ],
)
def test_each_way_to_change_a_path_is_seen(source: str) -> None:
    assert changes_of("a.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.unlink(x, dir_fd=d)",
        "import os\nos.rename(x, y, src_dir_fd=d, dst_dir_fd=d)",
        "import os\nos.open(x, os.O_RDONLY | os.O_CLOEXEC)",
        "import os\n_FLAGS = os.O_RDONLY | os.O_PATH\nos.open(x, _FLAGS)",
        "import os\nos.open(os.devnull, os.O_RDWR)",
        "import os\nos.fdopen(fd, 'w')",
        "open(x)",
        "open(x, 'rb')",
        "open('/proc/self/oom_score_adj', 'w')",
        "open(f'/proc/{pid}/clear_refs', 'w')",
        "from pathlib import Path\nPath('/proc/sys/vm/drop_caches').write_text('3')",
        "text.replace('a', 'b')",
        "import dataclasses\ndataclasses.replace(x)",
        "from hyperpod_kit.untrusted import by_descriptor\nby_descriptor.unlink(x)",
        "import tarfile\ntarfile.open(fileobj=x, mode='w')",
        "import torch\ndef f():\n    with where as out:\n        torch.save(value, out)",
        "import tempfile\nfrom pathlib import Path\ndef f():\n"
        "    with tempfile.TemporaryDirectory() as t:\n"
        "        Path(t, 'a').write_text('x')\n        (Path(t) / 'b').touch()",
    ],
)
def test_what_changes_nothing_by_path_is_passed_over(source: str) -> None:
    assert changes_of("a.py", textwrap.dedent(source)) == []


if __name__ == "__main__":
    for change in all_changes():
        print(f"{change.module}:{change.line}: {change.function}: {change.words}")
