"""A creation that is killed before any one of its effects, and run again: the node is what an undisturbed run makes.

`make test` kills it before one effect of twelve, drawn evenly over the whole; `make test-all` before all of them.
"""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any, Dict

import pytest

from hyperpod_kit.bundle.render import replace_bundle_directory
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount

SHARE = 12
"""Of so many effects that follow each other, `make test` draws one."""


def sweep(sweeping: Any, fresh: Path, address: str, tmp_path: Path, share: int = 1) -> int:
    """Kill a creation of `fresh` before each of its effects, or one drawn of each `share` of them; run it again,
    compare; how many effects there were."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(fresh, tmp_path / name, symlinks=True))

    undisturbed = copy("undisturbed")
    effects, changed = sweeping.create(undisturbed, address)
    assert changed > 0
    wanted = sweeping.end_state(undisturbed)
    # What is true of this end state is true of every one that equals it.
    assert sweeping.create(undisturbed, address)[1] == 0
    assert sweeping.end_state(undisturbed) == wanted
    dice = random.Random(7)
    for number in (min(first + dice.randrange(share), effects - 1) for first in range(0, effects, share)):
        root = copy(str(number))
        assert sweeping.create(root, address, kill_at=number) is None
        sweeping.create(root, address)
        found: Dict[str, Any] = sweeping.end_state(root)
        differing = {
            key: (wanted.get(key), found.get(key)) for key in {*wanted, *found} if wanted.get(key) != found.get(key)
        }
        assert not differing, f"killed before effect {number} of {effects}"
        shutil.rmtree(root)
    return effects


@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.full)])
def test_a_worker_killed_before_any_effect(
    make_sandbox: Any, sweeping: Any, render_example: Any, tmp_path: Path, share: int
) -> None:
    mounts = (EfsMount("home", "/efs", "fs-0123456789abcdef0"), S3Mount("data", "/data", "bucket"))
    sandbox = make_sandbox("compute", render_example(mounts=mounts))
    assert sweep(sweeping, sandbox.install(), sandbox.address, tmp_path, share) > 60


@pytest.mark.full
def test_a_controller_killed_before_any_effect(
    make_sandbox: Any, sweeping: Any, render_example: Any, tmp_path: Path
) -> None:
    sandbox = make_sandbox("controller", render_example(mounts=()))
    assert sweep(sweeping, sandbox.install(), sandbox.address, tmp_path) > 20


@pytest.mark.full
def test_another_configuration_killed_before_any_effect(
    make_sandbox: Any, sweeping: Any, render_example: Any, tmp_path: Path
) -> None:
    """From one set of mounts to another: one stays, one goes, one moves, a daemon gets other options, one is new."""
    stays = EfsMount("home", "/efs", "fs-0123456789abcdef0")
    before = (
        stays,
        LustreMount("gone", "/fsx", "fs-1.fsx.us-east-1.amazonaws.com", "abcdefgh"),
        EfsMount("moved", "/old", "fs-0123456789abcdef1"),
        S3Mount("data", "/data", "bucket"),
    )
    after = (
        stays,
        EfsMount("moved", "/new", "fs-0123456789abcdef1"),
        S3Mount("data", "/data", "bucket", file_mode="0640"),
        S3Mount("late", "/fsx", "bucket"),
    )
    sandbox = make_sandbox("compute", render_example(mounts=before, users=()))
    root = sandbox.install()
    sweeping.create(root, sandbox.address)
    second = render_example(mounts=after, users=())
    replace_bundle_directory(second, tmp_path / "second")
    (root / "opt/hyperpod-kit" / second.bundle_id).symlink_to(tmp_path / "second")
    (root / "opt/hyperpod-kit/current").unlink()
    (root / "opt/hyperpod-kit/current").symlink_to(second.bundle_id)
    assert sweep(sweeping, root, sandbox.address, tmp_path) > 30
    state = sweeping.end_state(tmp_path / "undisturbed")
    assert sorted(line.split()[1] for line in state["mounts"]) == ["/data", "/efs", "/fsx", "/new"]
    assert not [name for name in state if "-gone." in name or "gone.json" in name]
    assert re.search(r'--file-mode "?0640', state["loaded"]["hyperpod-kit-s3-data.service"])
    assert {"hyperpod-kit-s3-late.service", "hyperpod-kit-mount-moved.service"} <= set(state["enabled"])
