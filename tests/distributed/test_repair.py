"""Two ranks whose root loses all manifests: refused, rebuilt, and gone on from bit for bit."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from typing import Any

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.commands import cli
from hyperpod_kit.checkpoint.repository.format import manifest
from hyperpod_kit.checkpoint.repository.records import catalog

pytestmark = pytest.mark.distributed
STEPS = 24  # as the fixture `undisturbed`


@pytest.mark.full
def test_two_ranks_lose_their_manifests_and_go_on_bit_identical(
    job, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = job("repaired")
    mine.start(STEPS, "--save-every", "4")
    mine.reached(13)
    mine.kill()
    mine.kill_agents()
    for left in mine.shm.iterdir():  # other nodes
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    original = {}
    for entry in catalog.list_checkpoints(str(mine.root)):
        path = mine.root / entry.checkpoint_id / "MANIFEST.json"
        if entry.committed:
            original[entry.checkpoint_id] = manifest.decode(path.read_bytes())
            path.unlink()
    assert original and next(iter(original.values())).world == 2
    mine.start(STEPS, "--save-every", "4")
    assert 0 not in mine.wait()
    # The kill may have come between the newest commit and its LATEST: then other records say so.
    assert re.search(r"it was committed, as \S+ says, and its MANIFEST\.json is gone", mine.log(0).read_text())
    assert cli.run_command_raising_errors(["repair", str(mine.root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["attempt"] for one in told["manifests"] if one["written"]} >= set(original)
    for attempt, body in original.items():
        rebuilt = manifest.decode((mine.root / attempt / "MANIFEST.json").read_bytes())
        assert rebuilt.job.get("mesh") == body.job.get("mesh")
        lost: dict[str, Any] = {"time": "", "job": {}, "versions": {}, "rebuilt": None}
        assert dataclasses.replace(rebuilt, **lost) == dataclasses.replace(body, **lost)
    mine.start(STEPS, "--save-every", "4")
    assert mine.weights() == undisturbed
    found = mine.find("restored")
    assert (found["kind"], found["tier"], found["checkpoint_id"]) == ("Restored", "storage", max(original))
