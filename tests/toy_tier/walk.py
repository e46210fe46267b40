"""A run with the toy tier, started by test_toy_tier.py in a tree that has it: saved, copied there, restored from there.

walk.py EMPTY-DIRECTORY
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from hyperpod_kit.checkpoint import tiers
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.repository.format import digest
from tests.unit.checkpoint.test_restore_tiers import Site


def copy_to_toy(site: Site, directory: Path) -> None:
    """Copy the newest checkpoint, as whoever fills such a tier would."""
    [slot] = slots_of_step_one()
    page = slot.page
    assert page is not None
    tree = slot.read_extra(page.shard.extra_size)
    note = {
        "checkpoint_id": site.attempt,
        "run_id": page.origin.run_id,
        "rank": page.origin.rank,
        "key": page.key,
        "world": page.origin.world,
        "plan": page.shard.plan,
        "root": page.shard.root,
        "size": page.shard.size,
        "chunk": page.shard.chunk,
        "tree": tree.decode(),
        "tree_root": digest.small_object_digest(tree),
    }
    directory.mkdir()
    (directory / f"{site.attempt}.json").write_text(json.dumps(note))
    shutil.copyfile(next((site.root / site.attempt).glob("shard-*")), directory / f"{site.attempt}.shard")


def slots_of_step_one() -> list[shm_slots.Slot]:
    folder = os.environ["HPK_SHM_DIR"]
    slots = shm_slots.attach_each_mappable(folder, shm_slots.own_slot_names(folder))
    return [slot for slot in slots if slot.page is not None and slot.page.step == 1]


def main() -> None:
    here = Path(sys.argv[1])
    toy = here / "toy"
    os.environ.update(HPK_SHM_DIR=str(here / "shm"), TOY_TIER=str(toy))
    (here / "shm").mkdir()
    site = Site(here)
    copy_to_toy(site, toy)
    assert tiers.TIERS == ("memory", "local", "toy", "storage"), tiers.TIERS
    assert site.restored()[0].tier == "memory"
    shutil.rmtree(site.local)
    got, weight = site.restored(memory=False)
    assert (got.tier, got.step, weight, got.rejected) == ("toy", 1, 1.0, ()), got
    site.flip(toy, "*.shard")
    got, weight = site.restored(memory=False)
    assert (got.tier, got.step, weight) == ("storage", 1, 1.0), got
    assert [reason.partition(":")[0] for _, reason in got.rejected] == ["in toy"], got
    print("restored from the toy tier")


if __name__ == "__main__":
    main()
