"""One answer for all ranks of a bare srun: a write-once record; the first writer wins and everybody reads it again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import time
import zlib
from typing import Any, Callable, Dict, List, Mapping, Optional

from hyperpod_kit.errors import JobError, NoValidCheckpoint
from hyperpod_kit.job import choose
from hyperpod_kit.slurm.job_id import het_size

Record = Dict[str, Any]

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


def key(env: Mapping[str, str]) -> str:
    """Names one launch: HyperPod's step retry keeps job id, restart count and step id, but not srun's port.

    A step over several components of a heterogeneous job has a port for each: there its nodes stand in for it.
    """
    port = env.get("SLURM_STEP_LAUNCHER_PORT") or env.get("SLURM_SRUN_COMM_PORT") or "0"
    if het_size(env):
        port = f"het{zlib.crc32(env.get('SLURM_STEP_NODELIST', '').encode()):08x}"
    return ".".join([env.get("SLURM_JOB_ID", "0"), env.get("SLURM_RESTART_COUNT", "0"),
                     env.get("SLURM_STEP_ID", "0"), port])


def agree(state: str, name: str, decide: Callable[[], Record], *, patience: float = 30.0) -> Record:
    """The record `<state>/decisions/<name>.json`, made by `decide` if nobody has. Raises JobError, OSError."""
    place = os.path.join(state, "decisions")
    os.makedirs(place, mode=0o750, exist_ok=True)
    path = os.path.join(place, name + ".json")
    record = _read(path)
    if record is None:
        _publish(place, path, json.dumps(decide()).encode())
    end = time.monotonic() + patience
    while record is None:
        record = _read(path)
        if record is None:
            if time.monotonic() > end:
                raise JobError(f"{path} was begun and never finished")
            time.sleep(0.05)
    return record


def decide(root: str, by: str, chooser: choose.Chooser = choose.newest_valid) -> Record:
    """A new record: the choice, or why there is none."""
    try:
        return {"by": by, "t": round(time.time(), 3), **choose.choose(root, chooser).fields()}
    except NoValidCheckpoint as err:
        return {"by": by, "t": round(time.time(), 3), "from": None, "error": "NoValidCheckpoint",
                "rejected": choose.reasons(err.reasons)}


def task_prolog_lines(record: Record, rank: str) -> List[str]:
    """What task_prolog.sh prints for this record: `export` and `print` lines as Slurm's TaskProlog has them."""
    if record.get("from") is None:
        why = "; ".join(f"{one['attempt']}: {one['why']}" for one in record.get("rejected", []))
        return [f"print hyperpod-kit: NoValidCheckpoint: {why}"]
    lines = [f"export HPK_RESUME_FROM={record['from']}", f"export HPK_RESUME_STEP={record['step']}",
             f"export HPK_RESUME_KIND={record.get('kind', choose.OURS)}"]
    if rank == "0":
        lines.append("print hyperpod-kit: starts at step 0: nothing was ever committed" if record["from"] == choose.NONE
                     else f"print hyperpod-kit: resumes from {record['from']}, step {record['step']}")
    return lines


def _read(path: str) -> Optional[Record]:
    """None while it is not there or not complete."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _publish(place: str, path: str, data: bytes) -> None:
    """link(2) of a complete file: atomic on every POSIX file system, and it fails when somebody was first."""
    fd, temporary = tempfile.mkstemp(dir=place, prefix=".")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            try:
                os.link(temporary, path)
            except OSError as err:
                if err.errno not in _NO_LINKS:
                    raise
                # No hard links here: still one writer, and readers wait until the JSON is whole.
                with open(path, "xb") as file:
                    file.write(data)
    finally:
        os.unlink(temporary)
