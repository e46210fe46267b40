"""Whose root this is: RUN.json says it, and when RUN.json is lost or damaged, everything else in the root does.

Each manifest names run and id, each start's epoch file the id. So a lost RUN.json is written again from them and is
never replaced by a new id, beside which every checkpoint would be another run's; and a root that was exchanged under a
running job is noticed, because the id is looked at again before anything is committed or deleted.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Dict, List, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.store.base import Store, Unsupported
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.errors import CheckpointError, RunIsOwned
from hyperpod_kit.untrusted.text import counted

_READERS = 8


class RunIdentity(NamedTuple):
    """Who writes to a root: the name that people gave the run, and an id that no other root has."""

    run: str
    run_id: str

    def __str__(self) -> str:
        return f"run {self.run!r} ({self.run_id})"


class Evidence(NamedTuple):
    """What the rest of a root says about whose it is.

    `runs`: by id, the newest manifest's name of the run and the attempts that say so. `silent`: committed attempts
    whose manifest says nothing, and why. `starts`: the id in each epoch file, the newest start first.
    """

    runs: Dict[str, Tuple[RunIdentity, List[str]]]
    silent: Tuple[Tuple[str, str], ...]
    starts: Tuple[RunIdentity, ...]


class RunFile(NamedTuple):
    """What RUN.json says, or why it says nothing (`problem`). `exists`: something has its name."""

    identity: Optional[RunIdentity]
    problem: str = ""
    exists: bool = True


def read_run_file(store: Store) -> RunFile:
    """Return the content of RUN.json, or why it names no run. Raise OSError when it cannot be read."""
    try:
        body = manifest.parse_sealed_json(store.read(layout.RUN_FILE), layout.RUN_FILE)
        if body.get("format") != layout.RUN_FORMAT:
            return RunFile(None, f"{layout.RUN_FILE} has format {body.get('format')!r}, expected {layout.RUN_FORMAT!r}")
        return RunFile(RunIdentity(str(body["run"]), str(body["id"])))
    except FileNotFoundError:
        return RunFile(None, f"{layout.RUN_FILE} is missing", exists=False)
    except KeyError as err:
        return RunFile(None, f"{layout.RUN_FILE} lacks {err}")
    except CheckpointError as err:
        return RunFile(None, str(err))


def collect_identity_evidence(store: Store) -> Evidence:
    """Collect the run identities that manifests and epoch files name. Reads all of them, so it is only for a
    root whose RUN.json names no run, and for inspection. Raise OSError."""
    from concurrent.futures import ThreadPoolExecutor  # not at the start of each program: it brings logging

    entries = [entry for entry in catalog.list_checkpoints(store) if entry.committed]
    with ThreadPoolExecutor(1 if store.capabilities.local else _READERS) as pool:
        claims = list(pool.map(lambda entry: _identity_or_problem_in_manifest(store, entry.checkpoint_id), entries))
    runs: Dict[str, Tuple[RunIdentity, List[str]]] = {}
    silent = []
    for entry, (claimed, problem) in zip(entries, claims):
        if claimed is None:
            silent.append((entry.checkpoint_id, problem))
        else:
            runs.setdefault(claimed.run_id, (claimed, []))[1].append(entry.checkpoint_id)
    epochs = sorted(filter(None, map(layout.parse_epoch, store.list())), reverse=True)
    starts = (_identity_in_epoch_file(store, layout.epoch_file(epoch)) for epoch in epochs)
    return Evidence(runs, tuple(silent), tuple(start for start in starts if start is not None))


def _identity_or_problem_in_manifest(store: Store, checkpoint_id: str) -> Tuple[Optional[RunIdentity], str]:
    try:
        body = verify.read_manifest(store, checkpoint_id)
        return RunIdentity(body.run, body.run_id), ""
    except (CheckpointError, FileNotFoundError) as err:
        return None, verify.describe_failure(err)
    except OSError:
        raise
    except Exception as err:  # of one checkpoint; the others have a word too
        return None, verify.describe_unforeseen(err)


def _identity_in_epoch_file(store: Store, name: str) -> Optional[RunIdentity]:
    """The run that a start was of. Some starts name its id only."""
    with contextlib.suppress(CheckpointError, FileNotFoundError):
        body = manifest.parse_sealed_json(store.read(name), name)
        if isinstance(body.get("id"), str):
            return RunIdentity(str(body.get("run") or ""), body["id"])
    return None


def infer_identity(store: Store, *, fallback_run_name: Optional[str] = None) -> Optional[RunIdentity]:
    """Return whose root it is by everything but RUN.json; None when nothing names a run and nothing was
    committed.

    `fallback_run_name`: the run's name, where only starts identify it. Raise CheckpointError when the root
    contradicts itself or its checkpoints identify no run, OSError.
    """
    root_evidence = collect_identity_evidence(store)
    problem = read_run_file(store).problem or f"{layout.RUN_FILE} is ignored"
    if len(root_evidence.runs) > 1:
        raise CheckpointError(
            f"{store.url}: {problem}, and its checkpoints are of {len(root_evidence.runs)} runs: "
            f"{describe_runs(root_evidence)}",
            hint=f"hyperpod-kit checkpoint repair {store.url} --run-id ID  # the id of the run that owns the root",
        )
    if root_evidence.runs:
        return next(iter(root_evidence.runs.values()))[0]
    # Nothing whole was committed, so the newest start counts; what is in memory is of its id.
    if root_evidence.starts:
        return fill_missing_run_name(root_evidence.starts[0], store, fallback_run_name)
    if root_evidence.silent:
        raise CheckpointError(
            f"{store.url}: {problem}, and no run is named in its {counted(len(root_evidence.silent), 'checkpoint')}: "
            + "; ".join(f"{checkpoint_id}: {reason}" for checkpoint_id, reason in root_evidence.silent[:3]),
            hint=f"put {layout.RUN_FILE} back from a copy, or use another root",
        )
    return None


def describe_runs(root_evidence: Evidence) -> str:
    """The runs of a root that does not agree with itself, with their checkpoints."""
    return "; ".join(
        f"{identity}: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for identity, names in root_evidence.runs.values()
    )


def fill_missing_run_name(identity: RunIdentity, store: Store, fallback_run_name: Optional[str] = None) -> RunIdentity:
    """Return the identity with a run name: its own, else `fallback_run_name`, else the last part of the root's path."""
    return RunIdentity(
        identity.run or fallback_run_name or os.path.basename(store.url.rstrip("/")) or "run", identity.run_id
    )


def ensure_run_identity(store_or_root: StoreOrRoot, run: Optional[str] = None) -> RunIdentity:
    """Make the root and RUN.json if they are missing, and return whose root it is.

    A lost or damaged RUN.json is written again when the rest of the root says whose it is; where it cannot be
    written just now (no room, read-only), the inferred identity is used. Both give a RuntimeWarning. Raise
    RunIsOwned when another run writes here, CheckpointError, OSError.
    """
    store = as_store(store_or_root)
    run_file = read_run_file(store)
    identity = run_file.identity
    if identity is None:
        identity = infer_identity(store, fallback_run_name=run)
        if identity is None:
            import uuid  # of a new run alone

            identity = write_run_file_unless_valid(
                store, RunIdentity(run or os.path.basename(store.url.rstrip("/")) or "run", uuid.uuid4().hex)
            )
        else:
            _rewrite_run_file_and_warn(store, identity, run_file)
    if run is not None and identity.run != run:
        raise RunIsOwned(
            f"{store.url} belongs to run {identity.run!r}, this is run {run!r}", hint="give each run its own root"
        )
    return identity


def _rewrite_run_file_and_warn(store: Store, identity: RunIdentity, run_file: RunFile) -> None:
    """Write RUN.json again with the identity that the rest of the root implies, and warn whether that worked or
    not."""
    outcome = "it was written again"
    try:
        write_run_file_unless_valid(store, identity)
    except OSError as err:
        outcome = f"it {verify.describe_failure(err)}"
    warnings.warn(
        f"{store.url}: {run_file.problem}; the rest of the root says that it is of {identity}: {outcome}",
        RuntimeWarning,
        stacklevel=3,
    )


def write_run_file_unless_valid(store: Store, identity: RunIdentity) -> RunIdentity:
    """Write RUN.json, also in place of a damaged one, and return whose root it is now: another writer may have
    been first.

    Raise CheckpointError when what is there cannot be removed, OSError.
    """
    body = {"format": layout.RUN_FORMAT, "run": identity.run, "id": identity.run_id, "created": manifest.now()}
    for try_number in range(2):
        try:
            store.create(layout.RUN_FILE, manifest.seal_json(body))
            break
        except FileExistsError:
            before = read_run_file(store).identity
            if before is not None:
                return before
            if try_number:
                raise CheckpointError(
                    f"{store.url}/{layout.RUN_FILE} blocks the new file and cannot be removed",
                    hint=f"remove it, then: hyperpod-kit checkpoint repair {store.url}",
                ) from None
            remove_run_file(store)
    after = read_run_file(store)
    if after.identity is None:
        raise CheckpointError(f"{store.url}: {after.problem}, right after it was written")
    return after.identity


def remove_run_file(store: Store) -> None:
    """Delete a RUN.json that names no run. Raise CheckpointError, OSError."""
    try:
        directory = f"{layout.RUN_FILE}/" in store.list()
        store.delete(
            f"{layout.RUN_FILE}/" if directory and store.link_target(layout.RUN_FILE) is None else layout.RUN_FILE
        )
    except Unsupported as err:
        raise CheckpointError(
            f"{store.url}: a damaged {layout.RUN_FILE} cannot be replaced: {err}",
            hint=f"remove it with an account that may, then: hyperpod-kit checkpoint repair {store.url}",
        ) from None


def read_or_infer_identity(store_or_root: StoreOrRoot) -> Optional[RunIdentity]:
    """Return whose root this is, by RUN.json or else by the rest; None when nothing says so. Writes nothing.

    Raise CheckpointError when the root contradicts itself, OSError.
    """
    store = as_store(store_or_root)
    return read_run_file(store).identity or infer_identity(store)


def require_run_identity(store_or_root: StoreOrRoot, expected: RunIdentity) -> None:
    """Raise unless the root still belongs to the expected run; called before something is committed or deleted.

    Raise RunIsOwned when it is another run's, CheckpointError when nothing says whose it is, OSError.
    """
    store = as_store(store_or_root)
    actual = read_or_infer_identity(store)
    if actual is None:
        raise CheckpointError(
            f"{store.url} has no {layout.RUN_FILE}, and no file in it is of {expected}: it was emptied or replaced, "
            "or its mount is gone; nothing was committed or deleted",
            hint=f"restore the root of {expected}, or restart the run with another root",
        )
    if actual.run_id != expected.run_id:
        raise RunIsOwned(
            f"{store.url} is of {actual}, expected {expected}: the root was replaced; nothing was committed or deleted",
            hint=f"restore the root of {expected}, or restart the run with another root",
        )
