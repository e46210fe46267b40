"""A kind of mount is five files of its name and at most four lines elsewhere: proved by adding one to a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]

FILES = {
    "model.py": "hyperpod_kit/model/mounts/toy.py",
    "node.py": "hyperpod_kit/node/mounts/kinds/toy.py",
    "config.py": "hyperpod_kit/config/mounts/toy.py",
    "preflight.py": "hyperpod_kit/preflight/mounts/toy.py",
    "rehearsal.py": "rehearsal/hyperpod_rehearsal/mounts/toy.py",
}
"""File here -> file of the product."""

LIST = "hyperpod_kit/model/mounts/kinds.py"
LINES = {
    "from hyperpod_kit.model.mounts.s3files import S3FilesMount\n": (
        "from hyperpod_kit.model.mounts.toy import ToyMount\n"
    ),
    "    NvmeMount.kind: NvmeMount,\n": "    ToyMount.kind: ToyMount,\n",
}
"""Line of LIST -> the line that is added below it."""


def copy_of_the_tree(directory: Path) -> Path:
    tree = directory / "tree"
    for name in ("hyperpod_kit", "rehearsal/hyperpod_rehearsal", "lifecycle_scripts", "templates", "slurm"):
        # With what is compiled of it already: a copied file has its time and size.
        shutil.copytree(CHECKOUT / name, tree / name, ignore=shutil.ignore_patterns("_bundle"))
    for name in ("provisioning_parameters.example.json", "LICENSE"):
        shutil.copyfile(CHECKOUT / name, tree / name)
    return tree


def add_the_toy(tree: Path, leave_out: str = "") -> None:
    for name, place in FILES.items():
        if name != leave_out:
            shutil.copyfile(HERE / name, tree / place)
    text = (tree / LIST).read_text()
    for line, added in LINES.items():
        assert text.count(line) == 1
        text = text.replace(line, line + added)
    (tree / LIST).write_text(text)


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree}:{tree}/rehearsal:{CHECKOUT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )


def test_it_is_five_files_and_four_lines_at_most() -> None:
    assert len(FILES) <= 5 and len(LINES) <= 4


@pytest.mark.timeout(240)
def test_it_goes_from_the_configuration_to_a_node(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    add_the_toy(tree)
    example = CHECKOUT / "provisioning_parameters.example.json"
    done = run(tree, str(HERE / "walk.py"), str(example), str(tmp_path))
    assert done.stdout.endswith("from the configuration to a node\n"), done.stdout


@pytest.mark.parametrize(
    ("missing", "layer"),
    [
        ("node.py", "hyperpod_kit.node.mounts.kinds.registry"),
        ("config.py", "hyperpod_kit.config.mounts.registry"),
        ("preflight.py", "hyperpod_kit.preflight.mounts.registry"),
        ("rehearsal.py", "hyperpod_rehearsal.mounts.registry"),
    ],
)
def test_a_layer_without_its_file_cannot_be_imported(tmp_path: Path, missing: str, layer: str) -> None:
    tree = copy_of_the_tree(tmp_path)
    add_the_toy(tree, leave_out=missing)
    done = run(tree, "-c", f"import {layer}")
    assert done.returncode == 1 and "ModuleNotFoundError" in done.stdout and ".toy'" in done.stdout, done.stdout


@pytest.mark.parametrize(("file", "answer"), [("model.py", "at_home=False"), ("config.py", "short_form=None")])
def test_a_question_without_an_answer_is_an_error_at_import(tmp_path: Path, file: str, answer: str) -> None:
    tree = copy_of_the_tree(tmp_path)
    add_the_toy(tree)
    place = tree / FILES[file]
    line = next(line for line in place.read_text().splitlines(keepends=True) if answer in line)
    place.write_text(place.read_text().replace(line, ""))
    done = run(tree, "-c", "import hyperpod_kit.config.mounts.registry")
    assert done.returncode == 1 and "TypeError" in done.stdout and answer.split("=")[0] in done.stdout, done.stdout
