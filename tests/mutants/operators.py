"""Mutants: one small change of a source, as a mistake would be. By AST: what is written back compiles."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Optional, Tuple, Type

Change = Callable[[ast.AST], Optional[ast.AST]]
"""A node in place of a node; None where the operator has nothing to change in it."""


@dataclass(frozen=True)
class Site:
    """Where one operator changes one node: the number of the node in `ast.walk`."""

    operator: str
    node: int
    line: int


def _negated_condition(node: ast.AST) -> Optional[ast.AST]:
    assert isinstance(node, (ast.If, ast.While))
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return node


_OFF_BY_ONE: Dict[Type[ast.cmpop], Type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


def _off_by_one(node: ast.AST) -> Optional[ast.AST]:
    assert isinstance(node, ast.Compare)
    other = _OFF_BY_ONE.get(type(node.ops[0]))
    if other is None:
        return None
    node.ops[0] = other()
    return node


def _dropped_call(node: ast.AST) -> Optional[ast.AST]:
    assert isinstance(node, ast.Expr)
    return ast.Pass() if isinstance(node.value, ast.Call) else None


def _swapped_constant(node: ast.AST) -> Optional[ast.AST]:
    assert isinstance(node, ast.Constant)
    if isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node.value, (int, float)):
        return ast.Constant(node.value + 1)
    return None


def _early_return(node: ast.AST) -> Optional[ast.AST]:
    """A function ends before its last statement."""
    assert isinstance(node, ast.FunctionDef)
    if len(node.body) < 3:
        return None
    node.body.insert(len(node.body) - 1, ast.Return(None))
    return node


OPERATORS: Dict[str, Tuple[Tuple[Type[ast.AST], ...], Change]] = {
    "negated condition": ((ast.If, ast.While), _negated_condition),
    "off by one": ((ast.Compare,), _off_by_one),
    "dropped call": ((ast.Expr,), _dropped_call),
    "swapped constant": ((ast.Constant,), _swapped_constant),
    "early return": ((ast.FunctionDef,), _early_return),
}


def sites(source: str) -> List[Site]:
    """Every place of a source that an operator can change, inside of functions: what an import runs is no behaviour."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {id(node) for function in functions for node in _body(function)}
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in inside:
            continue
        for name, (kinds, change) in OPERATORS.items():
            if isinstance(node, kinds) and change(copy.deepcopy(node)) is not None:
                found.append(Site(name, number, _line(name, node)))
    return found


def _body(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of its statements, and itself; not its docstring, nor types and defaults of its arguments."""
    yield function
    for statement in function.body:
        yield from ast.walk(statement)


def _line(operator: str, node: ast.AST) -> int:
    """The line that runs where the mutant differs."""
    if operator == "early return":
        assert isinstance(node, ast.FunctionDef)
        return node.body[-1].lineno
    assert isinstance(node, (ast.expr, ast.stmt))
    return node.lineno


class _Replacement(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old = old
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def mutated(source: str, site: Site) -> str:
    """The source with that change."""
    tree = ast.parse(source)
    node = list(ast.walk(tree))[site.node]
    changed = OPERATORS[site.operator][1](copy.deepcopy(node))
    assert changed is not None
    return ast.unparse(ast.fix_missing_locations(_Replacement(node, changed).visit(tree))) + "\n"
