"""Syntax trees of the package's modules, made once for all tests of a process that look at the code."""

from __future__ import annotations

import ast
import gc
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Deque, Iterator


@lru_cache(maxsize=None)
def tree_of(path: Path) -> ast.Module:
    """Of a file that no test changes. The tree stays, so the garbage collector never looks at it again."""
    source = path.read_text(encoding="utf-8")
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """As `ast.walk`, in its order and without what no test asks for: whether a name is read or written."""
    pending: Deque[ast.AST] = deque([tree])
    while pending:
        node = pending.popleft()
        yield node
        for value in node.__dict__.values():
            if type(value) is list:
                pending.extend([item for item in value if isinstance(item, ast.AST)])
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                pending.append(value)
