"""Whether anything was ever committed under a root, asked of what only a commit brings about.

A manifest can be lost and leave all the rest: a purge of small files, a copy that left something out, somebody's hand.
So a root without a manifest is no root on which nothing was ever committed, unless everything else agrees:

    LATEST                        written after a manifest, never before the first
    epoch-N.json                  `committed`: what its start found there; absent in those of builds before 0.1.0
    pins, rewinds, leases, .BAD,   only a committed attempt is pinned, gone back to, read, proved or found damaged
    proofs
    flushes/...json               `committed`: what the node found there
    .hpk: ledger, verdicts,       what jobs resumed from; elsewhere for a root in S3, which then says where
          decisions
    attempts                      two of one start are whole with all that a commit writes before the manifest: of one
                                  alone it may be there without one

What a run leaves before its first commit proves nothing: epoch files, shards, even all files of one attempt but
its manifest (whoever saved it may have died in that moment), notes of a flush that is under way.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.records import flush_note, latest, lease, leftovers, pins, proofs, rollbacks
from hyperpod_kit.checkpoint.repository.records.leftovers import Leftover
from hyperpod_kit.checkpoint.repository.records.rollbacks import FreshStart, Rollback
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.environment import HPK_FRESH
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import clean_one_line, counted

KIT_KIND = "hyperpod-kit"
"""The kind of a checkpoint of ours, where a job's records name kinds."""

_LEDGER = "attempts.jsonl"
_LARGEST_LEDGER = 64 << 20
_LARGEST_RECORD = 1 << 20
_MOST_FILES = 4096
"""Verdicts and decisions that are read, the last ones by their names; the ledger has them all."""
_MOST_ON_THE_WAY = 2
"""Newer saves that may be whole on storage before an older one is committed: a Manager has two slots, or three."""
_MOST_NAMED = 8
"""Checkpoints that a refusal names."""


class CommitRecord(NamedTuple):
    """A file that says that a checkpoint was committed. `checkpoint_id`: which, or another framework's name of one; ""
    where it can no longer be read."""

    file: str
    checkpoint_id: str


@dataclass(frozen=True)
class RootFacts:
    """What lies under a root besides manifests. `directories`: the attempts whose directories are there. `fresh_start`:
    the newest record of a start that was meant to begin anew."""

    records: Tuple[CommitRecord, ...]
    directories: FrozenSet[str] = field(default_factory=frozenset)
    fresh_start: Optional[FreshStart] = None


class LostCommit(NamedTuple):
    """A checkpoint that was committed, as `files` say. `has_directory`: its directory is, without its manifest."""

    checkpoint_id: str
    files: Tuple[str, ...]
    has_directory: bool

    @property
    def id_or_record_file(self) -> str:
        """The checkpoint id, or the file that records the commit where that does not name one."""
        return self.checkpoint_id or self.files[0]

    @property
    def reason(self) -> str:
        """Why it cannot be restored, in words that name the evidence."""
        if not self.checkpoint_id:
            return "it is written only after a commit; it cannot be read, and no checkpoint exists"
        shown = ", ".join(self.files[:3]) + (f" and {len(self.files) - 3} more" if len(self.files) > 3 else "")
        if self.has_directory:
            loss = f"its {layout.MANIFEST_FILE} is gone"
        else:
            loss = "all of it is gone"
        return f"it was committed, as {shown} {'says' if len(self.files) == 1 else 'say'}, and {loss}"


def lost_commits_assuming_no_manifests(facts: RootFacts, *, kit_checkpoints: bool = True) -> List[LostCommit]:
    """The checkpoints that were committed under a root that has no manifest any more, the newest first; none when
    nothing was ever committed, or the run was meant to begin anew since. `kit_checkpoints`: not other frameworks'.
    Pure."""
    files: Dict[str, List[str]] = {}
    for record in facts.records:
        name = layout.parse_checkpoint_id(record.checkpoint_id)
        if kit_checkpoints is not (name is not None or not record.checkpoint_id):
            continue
        if facts.fresh_start is not None and _is_excluded_by_fresh_start(record, name, facts.fresh_start):
            continue
        evidence = files.setdefault(record.checkpoint_id, [])
        if record.file not in evidence:
            evidence.append(record.file)
    lost = [
        LostCommit(checkpoint_id, tuple(names), checkpoint_id in facts.directories)
        for checkpoint_id, names in files.items()
    ]
    return sorted(lost, key=_newest_first_key)


def _is_excluded_by_fresh_start(
    record: CommitRecord, name: Optional[layout.CheckpointId], fresh_start: FreshStart
) -> bool:
    if name is not None:
        return fresh_start.excludes(name)
    return (record.checkpoint_id or record.file) in fresh_start.named


def _newest_first_key(lost: LostCommit) -> Tuple[int, int]:
    name = layout.parse_checkpoint_id(lost.checkpoint_id)
    if name is not None:
        return (-name.epoch, -name.seq)
    return (1, 0)


def summarize_lost_commits(lost: Sequence[LostCommit]) -> List[Tuple[str, str]]:
    """Return (checkpoint, reason) of each lost commit, as an error names candidates: the first few, and one line
    that counts the others."""
    shown = [(commit.id_or_record_file, commit.reason) for commit in lost[:_MOST_NAMED]]
    rest = len(lost) - len(shown)
    if rest:
        return [*shown, ("older ones", f"{counted(rest, 'more was', 'more were')} committed")]
    return shown


def repair_hint(root: str) -> str:
    """Return what to type where checkpoints were lost."""
    return (
        f"hyperpod-kit checkpoint repair {root}  # rebuilds lost manifests from files that prove themselves; to start "
        f"again at step 0: hyperpod-kit job run --fresh, or {HPK_FRESH}=1 for a trainer without it"
    )


def collect_commit_evidence(store: Store) -> RootFacts:
    """Collect everything under a root that shows that a checkpoint was committed. Read small files only, each of
    them.

    Raise CheckpointError for a rollback record that is not to be trusted, OSError for what cannot be read: it
    cannot be taken as agreeing that nothing was committed.
    """
    standing = rollbacks.read_active_records(store)
    top = store.list()
    records = [
        record
        for read in (
            _records_from_latest_hint,
            _newest_commit_named_in_each_start_claim,
            _records_from_tombstones_pins_leases_proofs,
            _records_from_flush_notes,
            _records_from_complete_saves_with_newer,
        )
        for record in read(store, top)
    ]
    records += [
        CommitRecord(f"{layout.ROLLBACKS}/", record.attempt) for record in standing if isinstance(record, Rollback)
    ]
    jobs = _open_job_records(store)
    if jobs is not None:
        records += _records_from_job_files(*jobs)
    directories = frozenset(name[:-1] for name in top if name.endswith("/") and layout.parse_checkpoint_id(name[:-1]))
    return RootFacts(tuple(records), directories, rollbacks.newest_fresh_start(standing))


def _records_from_latest_hint(store: Store, root_entries: Sequence[str]) -> Iterator[CommitRecord]:
    """Yield the commit that LATEST names. It counts even when it is torn, since it is written only after a
    manifest."""
    if layout.LATEST_FILE in root_entries:
        hint_at = latest.read(store)
        yield CommitRecord(layout.LATEST_FILE, str(hint_at) if hint_at is not None else "")


def _newest_commit_named_in_each_start_claim(store: Store, root_entries: Sequence[str]) -> Iterator[CommitRecord]:
    for file in root_entries:
        if layout.parse_epoch(file) is None:
            continue
        checkpoint_id = _read_sealed_or_empty(store, file).get("committed")
        if isinstance(checkpoint_id, str) and layout.parse_checkpoint_id(checkpoint_id):
            yield CommitRecord(file, checkpoint_id)


def _records_from_tombstones_pins_leases_proofs(store: Store, root_entries: Sequence[str]) -> Iterator[CommitRecord]:
    for file in root_entries:
        checkpoint_id = layout.parse_tombstone(file)
        if checkpoint_id is not None:
            yield CommitRecord(file, checkpoint_id)
    for folder, list_ids in (
        (layout.PINS, pins.pinned_checkpoints),
        (layout.LEASES, lease.checkpoints_with_any_lease),
        (layout.PROOFS, proofs.proved_checkpoints),
    ):
        if f"{folder}/" in root_entries:
            yield from (
                CommitRecord(f"{folder}/", name) for name in list_ids(store) if layout.parse_checkpoint_id(name)
            )


def _records_from_flush_notes(store: Store, root_entries: Sequence[str]) -> Iterator[CommitRecord]:
    if f"{layout.FLUSHES}/" not in root_entries:
        return
    for file, note in flush_note.read_all(store).items():
        if note is not None and layout.parse_checkpoint_id(note.committed):
            yield CommitRecord(file, note.committed)


def _records_from_complete_saves_with_newer(store: Store, root_entries: Sequence[str]) -> Iterator[CommitRecord]:
    """Attempts that are whole but for their manifest, as newer saves of the same start are that came after its commit.
    Two attempts of one save may be those of a trainer and of a flush that were both killed before its commit."""
    names = [
        name
        for name in map(layout.parse_checkpoint_id, (file[:-1] for file in root_entries if file.endswith("/")))
        if name
    ]
    complete: Dict[int, List[layout.CheckpointId]] = {}
    for name in sorted(names, key=lambda name: (name.epoch, name.seq), reverse=True):
        if leftovers.classify_leftover(store, str(name), "") is not Leftover.COMPLETE:
            continue
        newer = complete.setdefault(name.epoch, [])
        follower = _newer_save_proving_commit(store, name, [other for other in newer if other.seq > name.seq])
        if follower is not None:
            yield CommitRecord(f"{follower}/", str(name))
        newer.append(name)


def _newer_save_proving_commit(
    store: Store, name: layout.CheckpointId, newer: Sequence[layout.CheckpointId]
) -> Optional[layout.CheckpointId]:
    """Return, of newer complete attempts, one that shows that the commit of `name` was over; None where it may
    not have happened yet.

    An agent commits one save after the other, but writes the shards of several at a time: two may be complete
    before the first commit, and the files of a commit exist in only one of them.
    """
    if len({other.seq for other in newer}) > _MOST_ON_THE_WAY:
        return newer[0]
    if not _has_extra_and_index_files(store, name):
        return None
    return next((other for other in newer if _has_extra_and_index_files(store, other)), None)


def _has_extra_and_index_files(store: Store, name: layout.CheckpointId) -> bool:
    """Whether what a commit writes before the manifest is there."""
    sizes = store.sizes(str(name))
    return layout.EXTRA_FILE in sizes and layout.INDEX_FILE in sizes


def _read_sealed_or_empty(store: Store, file: str) -> Mapping[str, Any]:
    """Return the content of a small file of the format; an empty mapping where it is torn or missing. Raise
    OSError."""
    try:
        return manifest.parse_sealed_json(store.read(file), file)
    except (CheckpointError, FileNotFoundError):
        return {}


def _open_job_records(store: Store) -> Optional[Tuple[Store, str]]:
    """Return the store in which jobs keep their records of this root, and its path for messages; None where none
    were ever kept. Raise OSError when they are in another location that is not available."""
    elsewhere = _read_sealed_or_empty(store, layout.JOBS_ELSEWHERE)
    if elsewhere:
        named = elsewhere.get("state")
        if elsewhere.get("format") != layout.JOBS_ELSEWHERE_FORMAT or not isinstance(named, str):
            return None
        if not os.path.isdir(named):
            raise FileNotFoundError(errno.ENOENT, f"the records of its jobs are not there, see {store.url}", named)
        return PosixStore(named), clean_one_line(named)
    if not is_path(store.url):
        return None
    return open_store(os.path.join(store.url, layout.JOBS)), layout.JOBS


def _records_from_job_files(jobs: Store, records_path: str) -> Iterator[CommitRecord]:
    try:
        ledger = jobs.read(_LEDGER, _LARGEST_LEDGER)
    except FileNotFoundError:
        ledger = b""
    for text in ledger.decode("utf-8", "replace").splitlines():
        for checkpoint_id in _committed_in_ledger_row(_json_object_or_empty(text)):
            yield CommitRecord(f"{records_path}/{_LEDGER}", checkpoint_id)
    for folder in [name for name in jobs.list("verdicts") if name.endswith("/")][-_MOST_FILES:]:
        for name in jobs.list(f"verdicts/{folder[:-1]}"):
            yield from _records_from_json_file(jobs, records_path, f"verdicts/{folder}{name}", _committed_in_verdict)
    for name in jobs.list("decisions")[-_MOST_FILES:]:
        yield from _records_from_json_file(jobs, records_path, f"decisions/{name}", _committed_in_decision)


def _records_from_json_file(
    jobs: Store, records_path: str, file: str, extract_ids: Callable[[Mapping[str, Any]], List[str]]
) -> Iterator[CommitRecord]:
    if not file.endswith(".json"):
        return
    try:
        value = _json_object_or_empty(jobs.read(file, _LARGEST_RECORD))
    except (CheckpointError, FileNotFoundError):
        return
    for checkpoint_id in extract_ids(value):
        yield CommitRecord(f"{records_path}/{file}", checkpoint_id)


def _json_object_or_empty(text: Any) -> Mapping[str, Any]:
    """A JSON object that another wrote; an empty one for what is none."""
    try:
        return parse_json_object(text, _LARGEST_RECORD)
    except ValueError:
        return {}


def _committed_in_ledger_row(row: Mapping[str, Any]) -> List[str]:
    """Return the ids that a ledger row shows as committed: those that an attempt was told to resume from, and
    that its ranks restored from storage."""
    event = row.get("event")
    if event == "attempt":
        return _committed_in_decision(row)
    if event == "restored":
        return _source_if_from_storage(row.get("from"), row.get("tier"))
    if event == "rewound":
        return _sanitized_names_without_none([row.get("from")])
    return []


def _committed_in_verdict(value: Mapping[str, Any]) -> List[str]:
    return _source_if_from_storage(value.get("source"), value.get("tier"))


def _committed_in_decision(value: Mapping[str, Any]) -> List[str]:
    """Return the checkpoint that was chosen and, where it is one of the kit's, those that were passed over for
    it: all of them had a manifest."""
    chosen = _sanitized_names_without_none([value.get("from")])
    if value.get("kind", KIT_KIND) != KIT_KIND:
        return chosen
    rejected = value.get("rejected")
    if isinstance(rejected, list):
        pairs = rejected
    else:
        pairs = []
    passed_over = _sanitized_names_without_none([pair.get("attempt") for pair in pairs if isinstance(pair, dict)])
    return [name for name in chosen + passed_over if layout.parse_checkpoint_id(name)]


def _source_if_from_storage(source: Any, tier: Any) -> List[str]:
    """Return [source] when the tiers of a restore include storage, else []: what was restored from memory alone
    need not have been committed."""
    from_storage = isinstance(tier, str) and "storage" in tier.split("+")
    if from_storage:
        return _sanitized_names_without_none([source])
    return []


def _sanitized_names_without_none(values: Sequence[Any]) -> List[str]:
    return [clean_one_line(value, 200) for value in values if isinstance(value, str) and value not in ("", "none")]
