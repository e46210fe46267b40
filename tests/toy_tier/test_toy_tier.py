"""A tier is one file of its own and a row in two others: proved by adding one to a copy, and by what forgets it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]

FILE = "hyperpod_kit/checkpoint/tiers/toy.py"
TIERS = "hyperpod_kit/checkpoint/tiers/__init__.py"
NODE_TIERS = "hyperpod_kit/checkpoint/agent/shm/node_tiers.py"
LINES = {
    TIERS: {
        "from hyperpod_kit.checkpoint.tiers.partner import PartnerTier\n": (
            "from hyperpod_kit.checkpoint.tiers.partner import PartnerTier\n"
            "from hyperpod_kit.checkpoint.tiers.toy import ToyTier\n"
        ),
        "(PartnerTier, MemoryTier, LocalDiskTier)": "(PartnerTier, MemoryTier, LocalDiskTier, ToyTier)",
    },
    NODE_TIERS: {
        "NODE_TIERS = (MEMORY, PARTNER, LOCAL_DISK)": (
            'TOY = NodeTier("toy", None, True)\nNODE_TIERS = (MEMORY, PARTNER, LOCAL_DISK, TOY)'
        ),
    },
}
"""File -> what of it is replaced, and by what."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the product with the toy tier."""
    tree = tmp_path / "tree"
    # With what is compiled of it already: a copied file has its time and size.
    shutil.copytree(CHECKOUT / "hyperpod_kit", tree / "hyperpod_kit", ignore=shutil.ignore_patterns("_bundle"))
    shutil.copyfile(HERE / "toy.py", tree / FILE)
    for name, lines in LINES.items():
        for line, instead in lines.items():
            replace_once(tree / name, line, instead)
    return tree


def replace_once(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name}: {old}"
    path.write_text(text.replace(old, new))


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree}:{CHECKOUT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )


def test_it_is_three_files_of_the_product() -> None:
    assert len({FILE, *LINES}) <= 3


@pytest.mark.timeout(240)
def test_a_run_restores_from_it_and_goes_on_without_it(tree: Path, tmp_path: Path) -> None:
    walk = tmp_path / "walk"
    walk.mkdir()
    done = run(tree, str(HERE / "walk.py"), str(walk))
    assert done.stdout.endswith("restored from the toy tier\n"), done.stdout
    (tree / FILE).unlink()
    for name, lines in LINES.items():
        for line, instead in lines.items():
            replace_once(tree / name, instead, line)
        assert (tree / name).read_text() == (CHECKOUT / name).read_text()


def test_without_its_row_for_the_node_it_cannot_be_imported(tree: Path) -> None:
    for line, instead in LINES[NODE_TIERS].items():
        replace_once(tree / NODE_TIERS, instead, line)
    done = run(tree, "-c", "import hyperpod_kit.checkpoint.tiers")
    assert done.returncode == 1 and "has no attribute 'TOY'" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("module", "purpose"),
    [
        ("hyperpod_kit.checkpoint.agent.flush.flush", "checkpoint flush"),
        ("hyperpod_kit.checkpoint.agent.flush.shm_cleanup", "the removal of empty slots"),
    ],
)
def test_what_forgets_slots_of_it_in_shared_memory_cannot_be_imported(tree: Path, module: str, purpose: str) -> None:
    replace_once(tree / NODE_TIERS, 'NodeTier("toy", None, True)', 'NodeTier("toy", "toys", True)')
    done = run(tree, "-c", f"import {module}")
    expected = f"TypeError: {purpose} does not know what to do with the tier 'toy'"
    assert done.returncode == 1 and expected in done.stdout, done.stdout
