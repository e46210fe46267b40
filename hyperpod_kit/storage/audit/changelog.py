"""`lfs changelog`: what a Lustre metadata server noted. FSx does not let its clients register for it.

`8 01CREAT 17:52:15.123456789 2024.08.20 0x0 t=[FID] j=JOBID ef=0xf u=UID:GID nid=NID p=[PARENT] NAME`; a rename has
`s=[FID] sp=[PARENT] OLD-NAME` behind it. Numbers without a hole: what is missing was purged or not read.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Iterable, Iterator

from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, Entry, unreadable

SOURCE = "lustre-changelog"
_LINE = re.compile(
    r"^(?P<number>\d+) \d\d(?P<kind>[A-Z]+) (?P<clock>\d\d:\d\d:\d\d)\.(?P<part>\d+) (?P<day>\d{4}\.\d\d\.\d\d) \S+ "
    r"t=\[(?P<target>[^\]]*)\](?P<more>(?: (?:j|ef|u|nid|m|x)=\S*)*)(?: p=\[(?P<parent>[^\]]*)\])?"
    r"(?: (?P<name>.*?))??(?: s=\[(?P<source>[^\]]*)\] sp=\[(?P<old_parent>[^\]]*)\] (?P<old>.*))?$"
)
_OPERATIONS = {
    "CREAT": "create",
    "MKDIR": "create",
    "HLINK": "create",
    "SLINK": "create",
    "UNLNK": "delete",
    "RMDIR": "delete",
    "RENME": "rename",
    "CLOSE": "write",
    "TRUNC": "write",
    "OPEN": "read",
}


def entries(lines: Iterable[str], name: str) -> Iterator[Entry]:
    """Times are those of the server, UTC. Paths are `[FID of the directory]/name`: `lfs fid2path` says which it is."""
    before, last = None, 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = _LINE.match(line.rstrip("\n"))
        if found is None:
            yield unreadable(SOURCE, name, number, line, last)
            continue
        count = int(found["number"])
        at = datetime.strptime(f"{found['day']} {found['clock']}", "%Y.%m.%d %H:%M:%S").replace(tzinfo=timezone.utc)
        when = at.timestamp() + float(f"0.{found['part']}")
        if before is not None and count != before + 1:
            why = f"{name}: records {before + 1} to {count - 1} are not there"
            yield AuditGap(last, when, SOURCE, f"{name}:{before}:{count}", why, "")
        before, last = count, when
        more = dict(part.split("=", 1) for part in found["more"].split())
        yield _record(found, more, when, name)


def _record(found: re.Match[str], more: dict[str, str], when: float, name: str) -> AuditRecord:
    here = f"[{found['parent'] or found['target']}]" + (f"/{found['name']}" if found["name"] else "")
    old = f"[{found['old_parent']}]/{found['old']}" if found["old"] else ""
    job = more.get("j", "")
    uid = more.get("u", "").split(":")[0]
    return AuditRecord(
        when,
        SOURCE,
        f"{name}:{found['number']}",
        _OPERATIONS.get(found["kind"], found["kind"]),
        old or here,
        here if old else "",
        host=more.get("nid", ""),
        uid=int(uid) if uid.isdigit() else -1,
        # Lustre's jobid_var=SLURM_JOB_ID; else it is a program's name and a uid.
        job=job if job.isdigit() else "",
        by="log" if job.isdigit() else "",
        command="" if job.isdigit() else job,
    )
