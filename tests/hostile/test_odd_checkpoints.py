"""Whoever may write to a root leaves odd things there: an older checkpoint that is whole is still found, at once."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository import retention, selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.records import catalog, pins, tombstone
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from hyperpod_kit.job.foreign import newest
from hyperpod_kit.job.foreign.frameworks import deepspeed
from hyperpod_kit.job.resume import checkpoint_choice
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.reports import junit
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.target import NodeTarget
from tests.hostile.checkpoints import name_of, put
from tests.support.examples import examples
from tests.support.rows import full

ROOT = Path(__file__).parents[2]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [2**63, -1, 10**30, "../../../etc/shadow", "\x1b]0;x\x07", "\ud800", "x" * 5000, "shard-00000.safetensors"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted(set(manifest.Manifest.__dataclass_fields__) | {"format"})
SHARD_FIELDS = ("file", "size", "root", "rank", "other")


@pytest.fixture(name="root", scope="module")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    put(root, 1)
    put(root, 2)
    return root


def _with(root: Path, change: Callable[[Dict[str, Any]], None]) -> None:
    """The newest checkpoint's manifest, changed and sealed anew."""
    path = root / name_of(2) / layout.MANIFEST_FILE
    good = path.with_name("good")
    if not good.exists():
        good.write_bytes(path.read_bytes())
    body = manifest.parse_sealed_json(good.read_bytes(), "MANIFEST.json")
    change(body)
    try:
        path.write_bytes(manifest.seal_json(body))
    except ValueError:  # NaN and the like are no JSON of ours: as another program would write them
        path.write_bytes(json.dumps(body).encode("utf-8", "replace"))


@examples(150, suppress_health_check=list(HealthCheck))
@given(
    field=st.sampled_from(
        [
            *FIELDS,
            *(f"shards.0.{name}" for name in SHARD_FIELDS),
            "extra.file",
            "extra.size",
            "extra.root",
            "metrics.loss",
        ]
    ),
    value=VALUES,
)
def test_no_value_in_any_field_hides_the_older_one(root: Path, field: str, value: Any) -> None:
    def change(body: Dict[str, Any]) -> None:
        at: Any = body
        *way, last = field.split(".")
        for part in way:
            at = at[int(part)] if part.isdigit() else at[part]
        at[last] = value

    _with(root, change)
    assert selection.newest_valid(str(root)).checkpoint_id in (name_of(1), name_of(2))
    store = PosixStore(str(root))
    assert len(retention.judge_all_checkpoints(store)) == 2
    assert len(list(catalog.iter_checkpoints_newest_first(store))) == 2


def _replace(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "sparse":
        with path.open("wb") as file:
            os.ftruncate(file.fileno(), 1 << 40)
    else:
        path.write_bytes(b"[" * 1_000_000)


@pytest.mark.parametrize("kind", ["fifo", *full("directory", "zero", "socket", "loop", "sparse", "deep")])
@pytest.mark.parametrize(
    "name",
    ["MANIFEST.json", "extra.json", "shard-00000.safetensors", "LATEST", "RUN.json", "tombstone", "epoch", "pin"],
)
def test_nothing_in_a_files_place_hides_the_older_one(tmp_path: Path, kind: str, name: str) -> None:
    """In a process that can be ended: a hang or all of the memory is the attack."""
    put(tmp_path, 1)
    newest_one = put(tmp_path, 2)
    places = {
        "LATEST": "LATEST",
        "RUN.json": "RUN.json",
        "tombstone": f"{newest_one}.BAD",
        "epoch": "epoch-000009.json",
        "pin": f"pins/{newest_one}.json",
    }
    path = tmp_path / places.get(name, f"{newest_one}/{name}")
    path.parent.mkdir(exist_ok=True)
    _replace(path, kind)
    program = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
from hyperpod_kit.job.resume import checkpoint_choice
checkpoint_choice.choose(sys.argv[1])  # before the ranks start, which may not hang either
print(checkpoint_choice.choose(sys.argv[1], checkpoint_choice.newest_verified_kit_else_foreign).source)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    expected = name_of(1) if "seq" in str(path.parent.name) else newest_one
    assert done.stdout.strip() == expected, done.stderr


def test_a_world_of_a_number_takes_no_memory(tmp_path: Path) -> None:
    put(tmp_path, 1)
    put(tmp_path, 2, lambda body: body.update(world=2**62))
    assert checkpoint_choice.choose(str(tmp_path)).source == name_of(1)


def test_a_rank_of_a_file_name_takes_no_memory(tmp_path: Path) -> None:
    place = tmp_path / "global_step5"
    place.mkdir()
    for rank in (0, 10**17):
        (place / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"x")
    (place / f"mp_rank_{10**17}_model_states.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="rank 0 are missing"):
        deepspeed.check_all_rank_files_present(str(place))
    with pytest.raises(NoValidCheckpoint):
        newest.newest_provable_foreign_checkpoint(str(tmp_path), {})


def test_a_listing_of_odd_names_ends_and_hides_nothing() -> None:
    """As a bucket that others write to: names of no kind, of all kinds, like options, like paths."""
    store = MemoryStore("s3://bucket/run")
    good = str(layout.CheckpointId(5, 50, 2, "abcd"))
    odd = (
        "-rf",
        "--all",
        "~",
        "..e1",
        "seq-",
        "seq-000001.step-0000000001.e1-",
        "e1-abcd.BAD",
        "\x1b]0;x\x07",
        "\u202e",
        "%s",
        "seq-" + "9" * 60 + ".step-0000000001.e1-abcd",
        "epoch-" + "9" * 5000 + ".json",
        "pins",
        "leases",
        "a" * 900,
    )
    names = {f"{word}{number}{tail}": b"" for number in range(2000) for word in odd for tail in ("", "/x", ".json")}
    store._objects.update(names)
    store._objects[f"{good}/{layout.MANIFEST_FILE}"] = b"{}"
    found = list(catalog.iter_checkpoints_newest_first(store))
    assert [entry.checkpoint_id for entry in found if entry.committed] == [good]
    assert (
        catalog.highest_epoch_and_seq(store)[0] == 2
        and pins.pinned_checkpoints(store) == set()
        and tombstone.read_damage_reason(store, good) is None
    )


def test_junit_of_control_characters_is_xml() -> None:
    from xml.etree import ElementTree as Xml

    evil = "\x1b]0;x\x07\0\x0b\ufffe\ud800<&\"']]>\x9b"
    target = NodeTarget(evil, evil, evil, evil, evil)
    mount = MountStatus(evil, "s3", evil, MountState.STALE, source=evil, detail=evil, latency_ms=float("nan"))
    reports = [NodeReport(target, mounts=(mount,)), NodeReport(target, error=evil, hint=evil)]
    text = junit.to_xml(evil, reports, 1.0, 1.0)
    document = Xml.fromstring(text.encode("utf-8"))
    assert not any(not char.isprintable() for char in text.replace("\n", "").replace(" ", ""))
    assert document.get("failures") == "1"
