"""Another bundle is installed in place, on a node on which a `job run` of an earlier one is at work."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

from hyperpod_kit.job.step import srun_step
from tests.support import bundles
from tests.support.bundles import REPOSITORY, BundleRoot

EARLIER_DOOR = "79683ee55f4667c55a70d47130977729d494701284f1f9527cadb0e299593dd2"

# What an earlier bundle's `job run`, with the names of that time, calls its ranks' wrapper; asked again and again.
ASK = """\
import sys
sys.path.insert(0, sys.argv[1])
from hyperpod_kit.job import step
for _ in sys.stdin:
    print(step.program(), flush=True)
"""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class InstalledBundles:
    """A node's /opt/hyperpod-kit, and small bundles around one door each."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "node"
        self.home = self.root / "opt/hyperpod-kit"
        self.home.mkdir(parents=True)
        self._staging = tmp_path / "staging"

    def install(self, note: str, door: str = "door") -> Path:
        """Install a bundle; where it lies."""
        files: Dict[str, bytes] = {
            "on_create.sh": (REPOSITORY / "lifecycle_scripts/on_create.sh").read_bytes(),
            "lib/__main__.py": b"",
            "lib/hyperpod_kit/version.py": b'RELEASE = "1"\n',
            step_door(): door.encode(),
            "bin/hyperpod-kit": b"#!/bin/sh\n",
            "node_config.json": b'{\n  "failure_pause": 0.0\n}\n',
            "note": note.encode(),
        }
        staging = self._staging / note
        identity = bundles.write(files, staging)
        bundles.install(staging, self.root)
        assert (self.home / "current").resolve() == self.home / identity
        return self.home / identity


def step_door() -> str:
    return "lib/" + str((Path(srun_step.__file__).parents[1] / "__main__.py").relative_to(REPOSITORY))


@pytest.fixture
def node(tmp_path: Path) -> InstalledBundles:
    return InstalledBundles(tmp_path)


def test_the_door_is_the_earlier_releases_to_the_byte() -> None:
    """A running `job run` of that release finds its ranks' wrapper by this file: share_door in on_create.sh."""
    assert digest(REPOSITORY / "hyperpod_kit/job/__main__.py") == EARLIER_DOOR


def test_bundles_with_the_same_door_share_its_file(node: InstalledBundles) -> None:
    door = step_door()
    first, second, third = node.install("one"), node.install("two"), node.install("three")
    assert (first / door).samefile(third / door) and (second / door).samefile(third / door)
    assert {bundle.joinpath(door).stat().st_mode & 0o7777 for bundle in (first, second, third)} == {0o644}
    inode = (first / door).stat().st_ino
    assert node.install("two") == second and (second / door).stat().st_ino == inode
    shutil.rmtree(third)
    assert (first / door).read_text() == (second / door).read_text() == "door"
    assert sorted(path.name for path in node.home.iterdir()) == sorted([".lock", "current", first.name, second.name])


def test_a_door_that_says_something_else_is_left_alone(node: InstalledBundles) -> None:
    door = step_door()
    first, second = node.install("one"), node.install("two", door="another")
    assert ((first / door).read_text(), (second / door).read_text()) == ("door", "another")
    (first / door).write_text("damaged")
    assert node.install("one") == first and (first / door).read_text() == "door"


def test_a_damaged_bundle_is_made_anew_and_shares_the_door_again(node: InstalledBundles) -> None:
    first, second = node.install("one"), node.install("two")
    (first / "note").write_text("damaged")
    assert node.install("one") == first
    assert (first / "note").read_text() == "one" and (first / step_door()).samefile(second / step_door())


def test_a_job_run_of_a_bundle_names_the_wrapper_by_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever `current` is by now; nothing is asked of it."""
    own = tmp_path / "0123456789abcdef/lib/hyperpod_kit/job/step/srun_step.py"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setattr(srun_step, "__file__", str(own))
    assert srun_step.kit_command_on_any_node() == [sys.executable, "-I", "-S", str(own.parents[1] / "__main__.py")], (
        "a checkout"
    )
    monkeypatch.setattr(srun_step, "BUNDLES", str(tmp_path))
    installed = "/opt/hyperpod-kit/current/lib/hyperpod_kit/job/__main__.py"
    assert srun_step.path_of_kit_main_on_nodes() == installed
    assert srun_step.kit_command_on_any_node() == ["/usr/bin/python3", "-I", "-S", installed]
    assert srun_step.kit_command_on_this_node()[-1] == str(own.parents[1] / "__main__.py")
    assert srun_step.wrapper() == [*srun_step.kit_command_on_any_node(), "exec", "--"]


def test_a_process_that_came_by_current_keeps_to_its_bundle(tmp_path: Path) -> None:
    for name in ("old", "new"):
        package = tmp_path / name / "hyperpod_kit"
        package.mkdir(parents=True)
        shutil.copy(REPOSITORY / "hyperpod_kit/__init__.py", package)
        (package / "late.py").write_text(f"RELEASE = {name!r}\n")
    current = tmp_path / "current"
    current.symlink_to("old")
    program = "import os, sys; sys.path.insert(0, 'current'); import hyperpod_kit; os.unlink('current'); "
    program += "os.symlink('new', 'current'); from hyperpod_kit import late; print(late.RELEASE)"
    argv = [sys.executable, "-I", "-S", "-c", program]
    assert subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "old\n"


@pytest.mark.rehearsal
@pytest.mark.needs("mounts", "git-history")
def test_a_running_job_run_of_the_earlier_release_finds_the_wrapper_on_every_node(tmp_path: Path) -> None:
    """Old -> new -> another new -> old, in place, under one process of the old bundle."""
    root = tmp_path / "node"
    home = root / "opt/hyperpod-kit"
    home.mkdir(parents=True)
    earlier = bundles.earlier_sources(tmp_path / "earlier")
    releases = {"X": (earlier, ""), "Y": (REPOSITORY, ""), "Z": (REPOSITORY, "configured otherwise")}
    ids = {name: bundles.write(bundles.files_of(*how), tmp_path / name) for name, how in releases.items()}
    bundles.install(tmp_path / "X", root)
    view = BundleRoot(home)
    argv = ["/usr/bin/python3", "-I", "-S", "-c", ASK, f"/opt/hyperpod-kit/{ids['X']}/lib"]
    process = subprocess.Popen(
        view.argv(argv, Path("/")), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdin and process.stdout
        for name in ("X", "Y", "Z", "X", "Y"):
            bundles.install(tmp_path / name, root)
            process.stdin.write("\n")
            assert process.stdout.readline() == "/opt/hyperpod-kit/current/lib/hyperpod_kit/job/__main__.py\n", name
            assert (home / ids["X"] / "lib/hyperpod_kit/job/decider.py").exists(), "it imports from there"
    finally:
        process.kill()
        process.communicate(timeout=10)
        view.close()
