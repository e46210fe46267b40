"""One choice for all ranks of a bare srun: a write-once record; the first writer wins, and every rank reads the file.

What a record says becomes environment of the ranks, and others may be allowed to write to the root. So a record and its
directories must belong to the job's own user (or to root), and it must name this very launch and hold nothing but what
we write.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from hyperpod_kit.checkpoint.repository.records.fresh_start import record_root_fresh_start
from hyperpod_kit.environment import HPK_FRESH
from hyperpod_kit.errors import JobError, NoValidCheckpoint, Untrusted
from hyperpod_kit.job.foreign.candidate import MOST_STEPS, well_named
from hyperpod_kit.job.resume import checkpoint_choice, unfinished_flushes
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_kit.untrusted import by_descriptor, files, parse
from hyperpod_kit.untrusted.text import clean_one_line

Record = Dict[str, Any]

LARGEST = 1 << 20
"""The most bytes that a record may have."""

HEAD_START = 15.0
"""Seconds that the first node of a step has for its decision, before others decide too: it may have died."""

STORAGE_PATIENCE = 10.0
"""Seconds in which a newer checkpoint that cannot be read just now is tried again, and one that a node still brings
to storage is waited for; slurmstepd waits meanwhile."""

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


def srun_launch_key_zeros_if_unset(env: Mapping[str, str]) -> str:
    """Return the name of one launch, in which a part without a variable is 0.

    The name ends in srun's port: HyperPod's step retry keeps job id, restart count and step id, but not the port.
    """
    return ".".join(
        [env.get("SLURM_JOB_ID", "0"), env.get("SLURM_RESTART_COUNT", "0"), step_launch_id_with_srun_port(env)]
    )


def read_or_make_shared_record(
    state: str, name: str, decide: Callable[[], Record], *, patience: float = 30.0, head_start: float = HEAD_START
) -> Record:
    """Return the record `<state>/decisions/<name>.json`, which is made by `decide` if there is none yet.

    Of all nodes of a step the first decides, and the others wait for it for `head_start` seconds: proving a checkpoint
    of another framework on each of them would read it as often as there are nodes. A record that was begun is waited
    for, `patience` seconds at most. The state directory is not made: where the root is gone, it must not come to be
    again, empty. Raises JobError, FileNotFoundError, OSError.
    """
    decisions_directory = os.path.join(state, "decisions")
    by_descriptor.make_directories(by_descriptor.resolve_parent(decisions_directory), 0o750, parents=False)
    owners = _Owners(decisions_directory)
    for folder in (state, decisions_directory):
        owners.raise_if_link_or_foreign_owner(folder, os.lstat(folder))
    path = os.path.join(decisions_directory, name + ".json")
    record = _read(path, name, owners)
    if record is None and not _create_begun_mark_if_first(path):
        record = poll_until(
            lambda: _read(path, name, owners),
            lambda polled_record: polled_record is not None,
            fixed_pause(0.05),
            seconds=head_start,
        )
    if record is None:
        _publish(path, json.dumps({"launch": name, **decide()}).encode())
        record = poll_until(
            lambda: _read(path, name, owners),
            lambda polled_record: polled_record is not None,
            fixed_pause(0.05),
            seconds=patience,
        )
    if record is None:
        raise JobError(f"{path} was started but never finished")
    return record


class _Owners:
    """The users whose files below `directory` are trusted: ours and root.

    Some file systems (an EFS access point, Mountpoint) show all files as one user's. There our files belong to that
    user, too, and a file that we create shows which one it is.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._accepted_uids = {os.geteuid(), 0}
        self._has_probed_owner = False

    def raise_if_link_or_foreign_owner(self, path: str, file_status: os.stat_result) -> None:
        """Raise JobError for a link, and for a file of a user who is not trusted."""
        if stat.S_ISLNK(file_status.st_mode):
            raise JobError(f"{path} is a link, expected a directory of hyperpod-kit", hint=f"ls -ld {path}")
        if file_status.st_uid not in self._accepted_uids and not self._has_probed_owner:
            self._has_probed_owner = True
            with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=self._directory) as file:
                self._accepted_uids.add(os.fstat(file.fileno()).st_uid)
        if file_status.st_uid not in self._accepted_uids:
            raise JobError(
                f"{path} belongs to uid {file_status.st_uid}, expected uid {os.geteuid()}: its content would become "
                "the environment of this job's ranks",
                hint=f"have it removed (ls -ld {path}), or give the job its own checkpoint root",
            )


def decide(
    root: str, state: str, by: str, chooser: Optional[checkpoint_choice.Chooser] = None, *, fresh: bool = False
) -> Record:
    """Return a new record: the choice, or why there is none. `fresh`: begin at step 0 in that case, as the user wants.

    Raises CheckpointError, OSError.
    """
    chooser = chooser or checkpoint_choice.chooser_reusing_foreign_proofs(root, state)

    def choose() -> checkpoint_choice.Choice:
        return unfinished_flushes.choose_after_flushes_end(
            lambda: checkpoint_choice.choose_waiting_for_unread_newer(root, state, {}, {}, STORAGE_PATIENCE, chooser),
            unfinished_flushes.make_note_reader(root),
            STORAGE_PATIENCE,
            root=root,
        )

    try:
        choice = choose()
    except NoValidCheckpoint as err:
        if fresh:
            record_root_fresh_start(root, by=f"{HPK_FRESH} of {by}")
            return {"by": by, "t": round(time.time(), 3), **choose().fields()}
        return {
            "by": by,
            "t": round(time.time(), 3),
            "from": None,
            "error": "NoValidCheckpoint",
            "rejected": checkpoint_choice.reasons(err.reasons),
        }
    return {"by": by, "t": round(time.time(), 3), **choice.fields()}


def task_prolog_lines(record: Record, rank: str) -> List[str]:
    """Return what task_prolog.sh prints for this record: `export` and `print` lines as Slurm's TaskProlog has them.

    Raises JobError for a record that we do not write.
    """
    wrong = problem(record)
    if wrong:
        raise JobError(f"the decision of this launch cannot be trusted: {wrong}")
    if record.get("from") is None:
        reasons = "; ".join(f"{rejection['attempt']}: {rejection['why']}" for rejection in record.get("rejected") or [])
        return [
            f"print hyperpod-kit: NoValidCheckpoint: {clean_one_line(reasons, 4000)}",
            "print hyperpod-kit: no task of this step starts; hyperpod-kit checkpoint repair ROOT --dry-run shows "
            f"what can be repaired, and {HPK_FRESH}=1 starts again at step 0",
        ]
    rank_environment = checkpoint_choice.told_to_ranks(
        record["from"], record["step"], record.get("kind", checkpoint_choice.KIT_KIND)
    )
    lines = [f"export {name}={value}" for name, value in rank_environment.items()]
    if rank == "0" and record["from"] == checkpoint_choice.NONE:
        lines.append("print hyperpod-kit: starts at step 0: no checkpoint was ever committed")
    elif rank == "0":
        lines.append(f"print hyperpod-kit: resumes from {record['from']}, step {record['step']}")
    return lines


def problem(record: Mapping[str, Any]) -> str:
    """Return why this is no record of ours, "" when it is one."""
    source, step, kind = record.get("from"), record.get("step"), record.get("kind", checkpoint_choice.KIT_KIND)
    rejected = record.get("rejected")
    if rejected is not None and not _is_list_of_rejections(rejected):
        return "its rejected is not a list of names and reasons"
    if source is None:
        return ""
    if not isinstance(source, str) or not well_named(source):
        return f"its from is {clean_one_line(source, 80)!r}"
    if type(step) is not int or not 0 <= step <= MOST_STEPS:
        return f"its step is {clean_one_line(step, 80)!r}"
    if kind not in checkpoint_choice.KINDS:
        return f"its kind is {clean_one_line(kind, 80)!r}"
    return ""


def _is_list_of_rejections(rejected: Any) -> bool:
    return isinstance(rejected, list) and all(
        isinstance(rejection, dict)
        and isinstance(rejection.get("attempt"), str)
        and isinstance(rejection.get("why"), str)
        for rejection in rejected
    )


def _read(path: str, name: str, owners: _Owners) -> Optional[Record]:
    """Return the record, None while it is not there or not complete. Raises JobError, OSError."""
    try:
        fd, file_status = files.open_regular_file_to_read(path)
    except FileNotFoundError:
        return None
    except Untrusted as err:
        raise JobError(f"{path}: {err.message}") from err
    try:
        owners.raise_if_link_or_foreign_owner(path, file_status)
        value = parse.parse_json_object(os.pread(fd, LARGEST + 1, 0), LARGEST)
    except ValueError:
        return None
    finally:
        os.close(fd)
    if value.get("launch", name) != name:
        raise JobError(f"{path} is of another launch: {clean_one_line(value.get('launch'), 80)!r}")
    return value


def _create_begun_mark_if_first(path: str) -> bool:
    """Create the mark that the decision has begun, and return True, if nobody has done so yet. Raises OSError."""
    try:
        marker_path = by_descriptor.resolve_parent(f"{path}.begun")
        os.close(by_descriptor.open_own_or_root_file(marker_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640))
        return True
    except FileExistsError:
        return False


def _publish(path: str, data: bytes) -> None:
    """Write the record unless another writer was first.

    A complete file is put in place by link(2), which is atomic on every POSIX file system and fails when there is a
    file. `store.durable` does the same with O_TMPFILE, which NFS does not have; there it writes in place, and what is
    torn fails its digest. A torn record would keep every rank waiting for the rest of it.
    """
    path = by_descriptor.resolve_parent(path)
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            try:
                by_descriptor.link(temporary, path)
            except OSError as err:
                if err.errno not in _NO_LINKS:
                    raise
                # No hard links here: still one writer, and readers wait until the JSON is whole.
                with by_descriptor.open_stream_for_writing(path, "xb") as file:
                    file.write(data)
    finally:
        by_descriptor.unlink(temporary)
