"""Every format that the kit writes on disk or on the wire: its number, a file of it as it is written, and its reader.

A file in `written/` is never changed. A format that changes gets the next number, another file and another row; the row
of the old number keeps its reader and loses its writer. `python -m tests.formats.table` writes the files that are not
there yet.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Tuple

from hyperpod_kit.bundle import manifest as bundle_manifest
from hyperpod_kit.bundle.sources import EXAMPLE
from hyperpod_kit.checkpoint.agent.leader import failure_rows
from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report
from hyperpod_kit.checkpoint.agent.shm import control_page, failure_note, job_note, note_page
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Page, ShardFacts, SlotState
from hyperpod_kit.checkpoint.agent.wire import handshake
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.repository import commit
from hyperpod_kit.checkpoint.repository.format import layout, manifest, rows, shard
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest
from hyperpod_kit.checkpoint.repository.format.shard import Placed, TensorSpec
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.read.rank_extra_state import RankStateLocation
from hyperpod_kit.checkpoint.repository.records import (
    flush_note,
    identity,
    latest,
    lease,
    pins,
    proofs,
    rollbacks,
    tombstone,
)
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.config.load import load
from hyperpod_kit.config.settings import access_points
from hyperpod_kit.config.settings.access_points import AccessPoint
from hyperpod_kit.data.loading import sample_log_check
from hyperpod_kit.data.loading.position import DataStep
from hyperpod_kit.data.loading.sample_log import SampleLog
from hyperpod_kit.job.goodput import time_rows
from hyperpod_kit.job.records import ledger as job_ledger
from hyperpod_kit.job.step import step_note
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.slurm import findings
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.phase_clock import COUNTED
from hyperpod_kit.storage.alerts import outbox as alert_outbox
from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.alerts.outbox import StandingAlert
from hyperpod_kit.storage.audit.ledger import AuditLedger
from hyperpod_kit.storage.plan import calibration
from hyperpod_kit.storage.quota import requests as quota_requests
from hyperpod_kit.storage.usage import history as usage_history
from hyperpod_kit.storage.usage.ledger import UsageLedger
from hyperpod_kit.system import quota_note
from hyperpod_kit.version import RELEASE

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = Path(__file__).parent / "written"


class Format(NamedTuple):
    """`name`: with its number, as it stands in the source, or with `(1)` where what is written has no number.

    `file`: in `written/`. `read`: what its reader makes of such a file, which must be `value`; None: not None. `write`:
    what is written today; None for a number that is only read any more.
    """

    name: str
    file: str
    read: Callable[[bytes], Any]
    value: Any = None
    write: Optional[Callable[[], bytes]] = None


BY_TESTS = {
    "hpk-rollout/1": "tests/unit/cli/test_cli_rollout.py",
    "hpk-node-notes/1": "tests/unit/remote/test_remote_fleet.py",
    "hpk-support/1": "tests/unit/remote/test_remote_support.py",
    # Of several files, or of libraries that this table does without: the bytes stand in those tests.
    "hpk-data/1": "tests/unit/data/test_index.py",
    "hpkpart1": "tests/unit/data/test_index.py",
    "hpk-merged/1": "tests/unit/data/test_bulk.py",
    "hpk-position/1": "tests/unit/data/test_loader.py",
    "hpk-lifeline/2": "tests/unit/job/test_lifeline.py",
}
"""Formats whose files are made where they are tested."""

ATTEMPT = str(layout.CheckpointId(5, 50, 2, "abcd"))
WHOSE = identity.RunIdentity("x", "0" * 32)
RECORD = FileRecord(layout.shard_file(0), 4096, "blake2b:" + "0" * 32, 0)
MANIFEST = Manifest(
    run="x",
    run_id="0" * 32,
    epoch=2,
    seq=5,
    step=50,
    world=1,
    plan="p",
    digest="blake2b",
    chunk=1 << 24,
    total_bytes=4096,
    tensors=4,
    time="2026-11-20T23:58:03Z",
    shards=(RECORD,),
    extra=FileRecord("extra.json", 2, "blake2b:ab"),
    index=FileRecord("index.bin", 100, "blake2b:cd"),
    metrics={"loss": 0.5},
    parent={"seq": 4, "step": 40},
    line=1,
    job={"slurm_job_id": "7", "mesh": [2, 1]},
    versions={"hyperpod_kit": RELEASE, "torch": "2.5"},
)
SPECS = (
    TensorSpec("layer.weight", "F32", (16, 8)),
    TensorSpec("box", "BF16", (4, 8), (4, 0), (8, 8)),
    TensorSpec("scalar", "I64", ()),
)
LAID = shard.lay_out(list(SPECS), rank=0, world=2, run_id="0" * 32, plan="p", algorithm="blake2b")
GAPS = (Placed(TensorSpec("a", "U8", (4,)), 64, 68), Placed(TensorSpec("b", "U8", (4,)), 72, 76))
PAGE = Page(
    SlotState.SEALED,
    CaptureOrigin(0, 2, "abcd", "x", "0" * 32, "/fsx/x", {"slurm_job_id": "7"}, (12, 34)),
    2,
    5,
    50,
    ShardFacts("blake2b", 1 << 20, 8192, "l", "p", 4, 4, 2, "blake2b:ab", "blake2b:cd"),
)
REPORT = Report(PAGE, RECORD, "{}", LAID.tensors)
PARTS = {0: (("model", '{"a":1}'), ("step", "50")), 1: (("model", '{"a":2}'), ("step", "50"))}
TYPED = (("dtype", '{"$":"torch","v":"bfloat16"}'), ("records", "3"))
SAVES = failure_note.Note("x", "/fsx/x", "7", 50, 1.7e9, 2, "no space left")
JOB = job_note.JobNote("7_2", 3, 1.7e9, 4, 0.5, {"crash": 2})
TIME = time_rows.TimeRow(
    "0.40000",
    "n1",
    1.7e9,
    1.7e9 + 12.5,
    Phase.STEP,
    1.7e9 + 10.0,
    51,
    53,
    (1, 0.5),
    0.25,
    {
        "import": 8.0,
        "open-step": 0.5,
        "data": 0.25,
        **{phase.value: 0.0 for phase in COUNTED},
        "step": 1.75,
        "save": 2.0,
    },
)
RUN = time_rows.RunRow("7_2", 1, 1.7e9, 1.7e9 - 60.0, 1.7e9 - 5.0, 16, ("n1", "n2"), "ana", "gpu", "prod")
JOB_TIME = job_note.TimeNote("7_2", {"steps": 3600.5, "twice": 12.0, "start-up": 100.0})
JOB_STEP = job_note.JobStepNote("7_2", 1207, 1.7e9, 2.5)
LOST = failure_rows.Row(3, 8, 2, "no space left", 1.7e9)
GUARD = findings.GuardRecord(1.7e9, (findings.SlurmFinding("slurmctld-down", "it is down", "start it"),), {"n": 1})
USAGE_DAY = usage_history.UsageDay("2023-11-14", 1.7e9, 12, 4096, 8192, 1 << 40, 1 << 39, {"ana": 8192})
STANDING = StandingAlert(
    Alert("/fsx/a", "/fsx/a is 81% full", "/fsx/a is 81.0% full.", ("a@x.example",)),
    1.7e9,
    frozenset({"sns arn:aws:x"}),
)
REQUEST = quota_requests.QuotaRequest("/fsx/a", 1 << 40, 0, "more data", 1.7e9)
HOME = AccessPoint("ana", "fs-0123456789abcdef0", 2001, 2001, "/home/ana", "fsap-0123456789abcdef0")
SAMPLE = calibration.Sample("fsx", "checkpoint", 8, 2, 1e10, 5.0)
TOKEN = b"k" * 32


def stored(write: Callable[[MemoryStore], object], folder: str = "") -> bytes:
    """The one object below `folder` that this writes to an empty root."""
    store = MemoryStore("memory")
    write(store)
    (name,) = [name for name in store._objects if name.startswith(folder)]
    return bytes(store._objects[name])


def a_root(name: str, data: bytes) -> MemoryStore:
    store = MemoryStore("memory")
    store._objects[name] = data
    return store


def in_directory(write: Callable[[Path], object]) -> bytes:
    """The one file that this writes to an empty directory."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        (path,) = [path for path in Path(name).rglob("*") if path.is_file()]
        return path.read_bytes()


def from_file(data: bytes, name: str, read: Callable[[Path], Any]) -> Any:
    """What is read of a directory in which a file has this content."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)


def committed_root() -> MemoryStore:
    return a_root(f"{ATTEMPT}/{layout.MANIFEST_FILE}", MANIFEST.encode())


def a_rewind(write: Callable[[MemoryStore], object]) -> bytes:
    store = committed_root()
    write(store)
    (name,) = [name for name in store._objects if name.startswith(layout.ROLLBACKS)]
    return bytes(store._objects[name])


def read_rewind(data: bytes) -> Tuple[Any, ...]:
    store = a_root(f"{layout.ROLLBACKS}/000001.json", data)
    store._objects[layout.epoch_file(9)] = b"{}"
    return tuple(type(record).__name__ for record in rollbacks.read_active_records(store))


def a_pin(data: bytes) -> Any:
    return pins.pinned_checkpoints(a_root(f"{layout.PINS}/{ATTEMPT}.json", data))


def a_lease(data: bytes) -> Any:
    until = manifest.parse_sealed_json(data, "lease")["until"]
    store = a_root(f"{layout.LEASES}/{ATTEMPT}.{until:010d}-00000000.json", data)
    return lease.leased_checkpoints(store, now=lease.Moment(until - 60.0, 0.0), watch=lease.LeaseWatch())


def a_flush(data: bytes) -> Any:
    name = f"{layout.FLUSHES}/host-0123456789ab.json"
    return flush_note.read_all(a_root(name, data))[name]


def a_page() -> bytes:
    page = bytearray(control_page.PAGE)
    control_page.write(memoryview(page), 1, PAGE)
    return bytes(page)


def an_extra(
    places: dict[int, Optional[RankStateLocation]], *, stages: bool, more: tuple[tuple[str, str], ...] = ()
) -> Callable[[], bytes]:
    parts = {rank: (*own, *more) for rank, own in PARTS.items()}
    return lambda: extra_state.encode(parts, places, has_pipeline_stages=stages, checkpoint_key=(2, 5, 50))


def a_note(body: Any) -> Callable[[], bytes]:
    def write(directory: Path) -> None:
        descriptor = note_page.open_or_create_own(str(directory / "note"))
        try:
            note_page.write_json_page(descriptor, body._asdict())
        finally:
            os.close(descriptor)

    return lambda: in_directory(write)


def a_job_ledger(directory: Path) -> None:
    book = job_ledger.Ledger(str(directory), "7", 0, clock=lambda: 1.7e9)
    book.append("start", attempt="7.0.1", nodes=["n1", "n2"], **{"from": ATTEMPT, "step": 51, "tier": "storage"})


def a_step_note(directory: Path) -> None:
    note = step_note.StepNote("7.0.1", 50, 1.7e9, 1.7e9, "all ranks at step 50")
    (directory / step_note.FILE).write_text(json.dumps(note._asdict()))


def a_sample_ledger(directory: Path) -> None:
    book = SampleLog(
        directory, rank=0, ranks=1, meant={"data": "d", "samples": 4, "seed": 1, "last": "drop"}, launch="l"
    )
    book.write_segment_header(0)
    book.log_received_samples(DataStep(0, 2, 0, 2), [3, 1])


def tables_of(make: Callable[[Path], Any]) -> bytes:
    """The tables of a database and what is in them, as SQL."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "base"
        make(path).close()
        with sqlite3.connect(path) as base:
            return "\n".join(base.iterdump()).encode() + b"\n"


def opened_again(data: bytes, opened: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "base"
        base = sqlite3.connect(path)
        base.executescript(data.decode())
        base.close()
        return opened(path)


def a_usage_ledger(path: Path) -> UsageLedger:
    ledger = UsageLedger(path, {"root": "/fsx"}, now=1.7e9)
    ledger.commit()
    return ledger


def resumed(path: Path) -> bool:
    ledger = UsageLedger(path, {"root": "/fsx"}, now=1.8e9)
    try:
        return ledger.resumed
    finally:
        ledger.close()


def verified(path: Path) -> Any:
    ledger = AuditLedger(path)
    try:
        return type(ledger.verify_chain()).__name__
    finally:
        ledger.close()


def a_greeting() -> bytes:
    question = handshake.build_challenge()
    return question + b"\n" + handshake.build_response(TOKEN, question, 1, False)[0] + b"\n"


def greeted(data: bytes) -> Any:
    (question, answer) = data.splitlines()
    hello = handshake.verify_response(TOKEN, question, answer, 2)
    return (hello.rank, hello.again) if hello is not None else None


def the_tensors(data: bytes) -> Any:
    return {name: [piece.begin for piece in pieces] for name, pieces in rows.decode_index_file(data).items()}


def a_config(directory: Path) -> None:
    access_points.write_access_points(directory / "c.json", [HOME])


FORMATS = (
    # A checkpoint root.
    Format(
        "hpk-run/1",
        "RUN.json",
        lambda data: identity.read_run_file(a_root(layout.RUN_FILE, data)).identity,
        WHOSE,
        lambda: stored(lambda store: identity.write_run_file_unless_valid(store, WHOSE)),
    ),
    Format(
        "epoch file (1)",
        "epoch-000001.json",
        lambda data: manifest.parse_sealed_json(data, "epoch")["id"],
        WHOSE.run_id,
        lambda: stored(lambda store: commit.claim_epoch(store, WHOSE, above=0, job={"slurm_job_id": "7"})),
    ),
    Format("hpk-ckpt/1", "MANIFEST.json", lambda data: verify.parse_manifest(data, ATTEMPT), MANIFEST, MANIFEST.encode),
    Format(
        "hpk-extra/1",
        "extra-1.json",
        lambda data: extra_state.parse_rank_tree_outside_shard(data, 1),
        {"model": {"a": 2}, "step": 50},
        an_extra({}, stages=False),
    ),
    Format(
        "hpk-extra/2",
        "extra-2.json",
        lambda data: extra_state.parse_rank_tree_outside_shard(data, 1),
        {"model": {"a": 2}, "step": 50},
        an_extra({}, stages=True),
    ),
    Format(
        "hpk-extra/3",
        "extra-3.json",
        lambda data: extra_state.split_shared_and_rank_parts(data, 2)[1][1].location,
        RankStateLocation(4096, 20, "blake2b:" + "0" * 32),
        an_extra({1: RankStateLocation(4096, 20, "blake2b:" + "0" * 32)}, stages=False),
    ),
    Format(
        "hpk-extra/4",
        "extra-4.json",
        lambda data: extra_state.parse_rank_tree_outside_shard(data, 1),
        {"model": {"a": 2}, "step": 50, "dtype": {"$": "torch", "v": "bfloat16"}, "records": 3},
        an_extra({}, stages=False, more=TYPED),
    ),
    Format(
        "HPKIDX1",
        "index-1.bin",
        the_tensors,
        {"a": [64], "b": [72]},
        lambda: rows.encode_index_file({0: GAPS}),
    ),
    Format(
        "HPKIDX2",
        "index-2.bin",
        the_tensors,
        {placed.spec.name: [placed.begin] for placed in LAID.tensors},
        lambda: rows.encode_index_file({0: LAID.tensors}),
    ),
    Format(
        "shard (1)",
        "shard-header.bin",
        lambda data: shard.parse(memoryview(data), size=LAID.size).tensors,
        LAID.tensors,
        lambda: bytes(LAID.header(2, 5, 50)),
    ),
    Format(
        "hpk-latest/1",
        "LATEST",
        lambda data: str(latest.read(a_root(layout.LATEST_FILE, data))),
        ATTEMPT,
        lambda: stored(lambda store: latest.try_write(store, ATTEMPT)),
    ),
    Format(
        "hpk-pin/1",
        "pin.json",
        a_pin,
        {ATTEMPT},
        lambda: a_pin_of(ATTEMPT),
    ),
    Format("hpk-lease/1", "lease.json", a_lease, {ATTEMPT}, lambda: stored(lambda s: lease.Lease(s, ATTEMPT, 60.0))),
    Format(
        "hpk-bad/1",
        "tombstone.json",
        lambda data: tombstone.read_damage_reason(a_root(layout.tombstone_file(ATTEMPT), data), ATTEMPT),
        "a flipped byte",
        lambda: stored(lambda store: tombstone.write(store, ATTEMPT, "a flipped byte")),
    ),
    Format(
        "hpk-proof/1",
        "proof.json",
        lambda data: proofs.proved_checkpoints(a_root(f"{layout.PROOFS}/{ATTEMPT}.json", data)),
        {ATTEMPT},
        lambda: stored(lambda store: proofs.record_proof(store, ATTEMPT, "verify")),
    ),
    Format(
        "hpk-rewind/1",
        "rewind.json",
        read_rewind,
        ("Rollback",),
        lambda: a_rewind(lambda store: rollbacks.pin_and_record_rollback(store, ATTEMPT, 7, "ana")),
    ),
    Format(
        "hpk-fresh/1",
        "fresh.json",
        read_rewind,
        ("FreshStart",),
        lambda: a_rewind(lambda store: rollbacks.record_fresh_start(store, 7, by="ana")),
    ),
    Format(
        "hpk-flush/1",
        "flush.json",
        a_flush,
        flush_note.FlushNote("n1", "7", 2, 5, 50, 4096, 1024, 0, ATTEMPT),
        lambda: stored(
            lambda store: flush_note.write(
                store, flush_note.new_note_path(), flush_note.FlushNote("n1", "7", 2, 5, 50, 4096, 1024, 0, ATTEMPT)
            )
        ),
    ),
    Format(
        "hpk-state/1",
        "state.json",
        lambda data: manifest.parse_sealed_json(data, "state")["state"],
        "/home/ana/.hpk",
        lambda: manifest.seal_json({"format": layout.JOBS_ELSEWHERE_FORMAT, "state": "/home/ana/.hpk"}),
    ),
    Format(
        "lost saves (1)",
        "lost-saves.json",
        lambda data: failure_rows.read_newest(a_root(".hpk/saves-e000003-000008.json", data)),
        LOST,
        lambda: json.dumps(LOST._asdict()).encode(),
    ),
    # Jobs.
    Format(
        "job ledger (1)",
        "attempts.jsonl",
        lambda data: [row["event"] for row in from_file(data, "attempts.jsonl", lambda p: job_ledger.read(str(p)))],
        ["start"],
        lambda: in_directory(a_job_ledger),
    ),
    Format(
        "step note (1)",
        "steps.json",
        lambda data: from_file(data, step_note.FILE, lambda path: step_note.read(str(path.parent))),
        step_note.StepNote("7.0.1", 50, 1.7e9, 1.7e9, "all ranks at step 50"),
        lambda: in_directory(a_step_note),
    ),
    Format(
        "hpk-time/1",
        "time.jsonl",
        lambda data: from_file(data, "time/7.0.1.jsonl", lambda path: time_rows.read(str(path.parent.parent), "7.0.1")),
        [TIME],
        lambda: time_rows.encoded(TIME),
    ),
    Format(
        "hpk-time-run/1",
        "time-run.jsonl",
        lambda data: from_file(data, "time/7.run.jsonl", lambda p: time_rows.read_run(str(p.parent.parent), "7.run")),
        RUN,
        lambda: time_rows.encoded_run(RUN),
    ),
    # Shared memory and a node's disk.
    Format("HPKSLOT1", "control-page.bin", lambda data: control_page.read(memoryview(data)), (1, PAGE), a_page),
    Format(
        "report (1)",
        "report.json",
        lambda data: Report.from_json(manifest.parse_sealed_json(data, "report")),
        REPORT,
        lambda: manifest.seal_json(REPORT.to_json()),
    ),
    Format(
        "note of saves (1)", "saves.page", lambda data: failure_note._parse_note(json.loads(data)), SAVES, a_note(SAVES)
    ),
    Format("note of a job (1)", "job.page", lambda data: job_note._parse_job_note(json.loads(data)), JOB, a_note(JOB)),
    Format(
        "note of a job's time (1)",
        "job-time.page",
        lambda data: job_note.parse_time_note(json.loads(data)),
        JOB_TIME,
        a_note(JOB_TIME),
    ),
    Format(
        "note of a job's step (1)",
        "job-step.page",
        lambda data: job_note.parse_step_note(json.loads(data)),
        JOB_STEP,
        a_note(JOB_STEP),
    ),
    # Nodes and bundles.
    Format(
        "hpk-node/1",
        "node_config.json",
        lambda data: NodeConfig.from_json(data.decode()).to_json().encode() == data,
        True,
        lambda: load(ROOT / EXAMPLE).node_config().to_json().encode(),
    ),
    Format(
        "hpk-bundle/2",
        "bundle.json",
        bundle_manifest.parse_bundle_format,
        bundle_manifest.FORMAT,
        lambda: bundle_manifest.make_bundle_json(RELEASE, "0" * 16),
    ),
    Format(
        "hpk-slurm-guard/1",
        "slurm.json",
        lambda data: from_file(data, "slurm.json", lambda path: findings.read_guard_record(str(path))),
        GUARD,
        lambda: json.dumps(GUARD.to_dict()).encode(),
    ),
    # Storage and configuration.
    Format(
        "hpk-quota/1",
        "quota.json",
        lambda data: from_file(
            data,
            quota_note.NAME,
            lambda path: (quota_note.nearest_quota_note_at_or_above(str(path.parent)) or {})["bytes"],
        ),
        1 << 40,
        lambda: in_directory(lambda directory: quota_note.write_quota_note(str(directory), {"bytes": 1 << 40})),
    ),
    Format(
        "hpk-quota-request/1",
        "quota-request.json",
        quota_requests.decode_request,
        REQUEST,
        lambda: quota_requests.encode_request(REQUEST),
    ),
    Format(
        "hpk-quota-state/1",
        "quota-state.json",
        lambda data: from_file(data, "state", alert_outbox.read_standing_alerts_or_empty),
        {"/fsx/a": StandingAlert(Alert("/fsx/a", "", ""), 0.0)},
    ),
    Format(
        "hpk-alerts/1",
        "alerts.json",
        lambda data: from_file(data, "state", alert_outbox.read_standing_alerts_or_empty),
        {"/fsx/a": STANDING},
        lambda: in_directory(lambda directory: alert_outbox.write(directory / "state", {"/fsx/a": STANDING})),
    ),
    Format(
        "hpk-access-points/1",
        "access-points.json",
        lambda data: from_file(
            data, "c.access-points.json", lambda path: access_points.read_access_points_or_empty(path.parent / "c.json")
        ),
        {"ana": HOME},
        lambda: in_directory(a_config),
    ),
    Format(
        "hpk-storage-calibration 1",
        "calibration.json",
        lambda data: from_file(data, "c.json", calibration.load).samples,
        (SAMPLE,),
        lambda: in_directory(
            lambda directory: calibration.save(calibration.Calibration("a test", (SAMPLE,)), directory / "c.json")
        ),
    ),
    # A walk of another format begins anew.
    Format("hpk-usage/1", "usage.sql", lambda data: opened_again(data, resumed), False),
    Format(
        "hpk-usage/2",
        "usage-2.sql",
        lambda data: opened_again(data, resumed),
        True,
        lambda: tables_of(a_usage_ledger),
    ),
    Format(
        "hpk-usage-history/1",
        "usage-history.json",
        lambda data: from_file(data, "history", usage_history.read_history_or_empty).days,
        (USAGE_DAY,),
        lambda: in_directory(
            lambda directory: usage_history.write(
                directory / "history", usage_history.UsageHistory("/fsx", (USAGE_DAY,))
            )
        ),
    ),
    Format(
        "hpk-audit/1",
        "audit.sql",
        lambda data: opened_again(data, verified),
        "ChainVerdict",
        lambda: tables_of(lambda path: AuditLedger(path, create=True)),
    ),
    # Training data.
    Format(
        "hpk-ledger/1",
        "samples.jsonl",
        lambda data: (
            type(from_file(data, "l.jsonl", lambda path: sample_log_check.check_sample_log(path.parent))).__name__
        ),
        "SampleLogReport",
        lambda: in_directory(a_sample_ledger),
    ),
    # On the wire.
    Format("hpk-agents/2", "agents.greeting", greeted, (1, False), a_greeting),
    Format(
        "hpk-ranks/5",
        "ranks.value",
        lambda data: wire_values.unpack(data, "rank 1"),
        ("seq", 5, None, 0.5, b"raw", ("a", "b")),
        lambda: wire_values.pack(("seq", 5, None, 0.5, b"raw", ("a", "b"))),
    ),
)


def a_pin_of(attempt: str) -> bytes:
    store = committed_root()
    pins.pin(store, attempt, "kept")
    (name,) = [name for name in store._objects if name.startswith(layout.PINS)]
    return bytes(store._objects[name])


if __name__ == "__main__":
    WRITTEN.mkdir(exist_ok=True)
    for form in FORMATS:
        if form.write is not None and not (WRITTEN / form.file).exists():
            (WRITTEN / form.file).write_bytes(form.write())
            print(form.file)
