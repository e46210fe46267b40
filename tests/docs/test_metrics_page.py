"""docs/reference/metrics.md has the metrics that the code writes, each with its type, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Dict, Iterator, List

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/metrics.md"
NAME = re.compile(r"hyperpod_kit_[a-z_]*[a-z]")
ROW = re.compile(r"^\| `(hyperpod_kit_[a-z_]+)` \| (gauge|counter) \|", re.MULTILINE)


def metrics_of_code() -> Dict[str, str]:
    """Name -> type, of every metric in the modules that write a text file for the node exporter."""
    found: Dict[str, str] = {}
    for source in (ROOT / "hyperpod_kit").rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        if "# TYPE " in text:
            found.update(metrics_of_module(ast.parse(text)))
    return found


def metrics_of_module(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            # _format_metric is told the type apart; by Prometheus' convention a counter's name ends so.
            yield node.value, "counter" if node.value.endswith("_total") else "gauge"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^# TYPE (hyperpod_kit_[a-z_]+) (\w+)$", node.value)
        elif isinstance(node, ast.For):
            yield from metrics_of_loop(node)


def metrics_of_loop(loop: ast.For) -> Iterator[tuple[str, str]]:
    """The metrics whose name ends in the first variable of a loop over a tuple."""
    if not isinstance(loop.iter, ast.Tuple) or not isinstance(loop.target, ast.Tuple):
        return
    variable = ast.unparse(loop.target.elts[0])
    for node in ast.walk(loop):
        if not isinstance(node, ast.JoinedStr):
            continue
        match = re.fullmatch(rf"f'# TYPE (hyperpod_kit_[a-z_]*){{{variable}}} (\w+)'", ast.unparse(node))
        if match:
            yield from ((match[1] + ending, match[2]) for ending in first_constants(loop.iter))


def first_constants(rows: ast.Tuple) -> List[str]:
    return [str(ast.literal_eval(row.elts[0])) for row in rows.elts if isinstance(row, ast.Tuple)]


def test_the_page_has_every_metric_with_its_type_and_no_other() -> None:
    of_code = metrics_of_code()
    assert {"hyperpod_kit_gpus", "hyperpod_kit_quota_share", "hyperpod_kit_slurm_jobs"} <= set(of_code)
    assert dict(ROW.findall(PAGE.read_text(encoding="utf-8"))) == of_code


def test_every_file_of_metrics_has_one_writer_and_is_on_the_page() -> None:
    files: Dict[str, str] = {}
    for source in sorted((ROOT / "hyperpod_kit/node").rglob("*.py")):
        for name in re.findall(r'"(\w+\.prom)"', source.read_text(encoding="utf-8")):
            assert name not in files, f"{source} and {files[name]} write {name}: each would replace the other's metrics"
            files[name] = str(source)
    assert "hyperpod_kit.prom" in files
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in files if f"`{name}`" not in page] == []


def test_the_dashboard_asks_for_metrics_that_are_there() -> None:
    dashboard = (ROOT / "examples/grafana/hyperpod-kit.json").read_text(encoding="utf-8")
    assert set(NAME.findall(dashboard)) <= set(metrics_of_code())
