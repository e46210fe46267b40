"""What is checked of every piece of Python that people read, without running it."""

from __future__ import annotations

import ast
import importlib
import warnings

from docs_build.blocks import Block


def check_imports(block: Block) -> None:
    """Compile a block, and look up each name that it imports from the package. Raises AssertionError, SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = ast.parse(block.text, filename=block.place)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hyperpod_kit"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{block.place}: {node.module} has no {alias.name}"
