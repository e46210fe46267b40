"""`lfs changelog`: what a Lustre metadata server noted. FSx does not let its clients register for it.

`8 01CREAT 17:52:15.123456789 2024.08.20 0x0 t=[FID] j=JOBID ef=0xf u=UID:GID nid=NID p=[PARENT] NAME`; a rename has
`s=[FID] sp=[PARENT] OLD-NAME` behind it. Numbers without a hole: what is missing was purged or not read.

`lfs changelog` prints names as they are, with line ends in them: a name can write lines that look like records. Such
lines come after the record that has the name and before the next one, and there are few of them. So a record waits for
WINDOW more lines: a line whose number does not follow is no record if the numbers go on behind it as if it were not
there, and of two different lines of one number neither is. A gap names each.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from datetime import datetime, timezone
from typing import Iterable, Iterator, NamedTuple

from hyperpod_kit.storage.audit.record import AuditGap, AuditRecord, Entry, unreadable_line_gap
from hyperpod_kit.untrusted.text import clean_one_line

SOURCE = "lustre-changelog"
_LINE = re.compile(
    r"^(?P<number>[0-9]{1,20}) [0-9]{2}(?P<kind>[A-Z]+) (?P<clock>\d\d:\d\d:\d\d)\.(?P<part>\d+) "
    r"(?P<day>\d{4}\.\d\d\.\d\d) \S+ "
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


WINDOW = 32
"""More lines than the names of one record can have: two of 255 bytes, of lines that have at least 40."""


class _ChangelogLine(NamedTuple):
    number: int
    text: str
    when: float
    record: AuditRecord


def parse_entries_marking_sequence_gaps(lines: Iterable[str], log_name: str) -> Iterator[Entry]:
    """Parse `lfs changelog`.

    Times are those of the server, UTC. Paths are `[FID of the directory]/name`: `lfs fid2path` says which it is.
    """
    sequence = _Sequence(log_name)
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        line = _parse_line(text.rstrip("\n"), log_name)
        if line is None:
            yield unreadable_line_gap(SOURCE, log_name, number, text, sequence.last)
        else:
            yield from sequence.add_and_yield_certain(line)
    yield from sequence.yield_remaining()


class _Sequence:
    """Records in the order of their numbers.

    `waiting`: records that follow one another, which a later line can still contradict; `apart`: lines after them
    whose numbers do not follow.
    """

    def __init__(self, log_name: str) -> None:
        self._name = log_name
        self._waiting: deque[_ChangelogLine] = deque()
        self._out_of_sequence: list[_ChangelogLine] = []
        self._last_number: int | None = None
        self.last = 0.0

    def add_and_yield_certain(self, line: _ChangelogLine) -> Iterator[Entry]:
        """Add a line, and yield the entries that are certain by it."""
        if not self._waiting or line.number == self._waiting[-1].number + 1:
            yield from self._drop_out_of_sequence_as_gaps(line)
            self._waiting.append(line)
            if len(self._waiting) > WINDOW:
                yield from self._yield_oldest_after_gap_if_any()
            return
        self._out_of_sequence.append(line)
        if len(self._out_of_sequence) > WINDOW:
            yield from self._yield_waiting_and_readd_out_of_sequence()

    def yield_remaining(self) -> Iterator[Entry]:
        """Return what remains."""
        while self._out_of_sequence:
            yield from self._yield_waiting_and_readd_out_of_sequence()
        while self._waiting:
            yield from self._yield_oldest_after_gap_if_any()

    def _yield_oldest_after_gap_if_any(self) -> Iterator[Entry]:
        line = self._waiting.popleft()
        if self._last_number is not None and line.number > self._last_number + 1:
            reason = f"{self._name}: records {self._last_number + 1} to {line.number - 1} are missing"
            yield AuditGap(self.last, line.when, SOURCE, f"{self._name}:{self._last_number}:{line.number}", reason, "")
        self._last_number, self.last = line.number, line.when
        yield line.record

    def _yield_waiting_and_readd_out_of_sequence(self) -> Iterator[Entry]:
        """Go on from lines out of sequence: records are missing, or another dump of the same log begins."""
        while self._waiting:
            yield from self._yield_oldest_after_gap_if_any()
        lines, self._out_of_sequence = self._out_of_sequence, []
        for line in lines:
            yield from self.add_and_yield_certain(line)

    def _drop_out_of_sequence_as_gaps(self, following: _ChangelogLine) -> Iterator[Entry]:
        """Drop lines out of sequence, behind which the numbers go on; one that is no repetition becomes a gap."""
        for line in self._out_of_sequence:
            same_number = [other for other in self._waiting if other.number == line.number]
            if any(other.text == line.text for other in same_number):
                continue
            for other in same_number:
                self._waiting.remove(other)
            contradicted = same_number[0] if same_number else following
            yield self._contradiction_gap(line, contradicted)
        self._out_of_sequence = []

    def _contradiction_gap(self, line: _ChangelogLine, contradicted: _ChangelogLine) -> AuditGap:
        reason = (
            f"{self._name}: a line of number {line.number} and one of number {contradicted.number} "
            "contradict each other, and one of them may be a part of a name: "
            f"{clean_one_line(line.text)} | {clean_one_line(contradicted.text)}"
        )
        digest = hashlib.blake2b(line.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        times = sorted((line.when, contradicted.when))
        return AuditGap(times[0], times[1], SOURCE, f"{self._name}:{line.number}:{digest}", reason, "")


def _parse_line(line: str, log_name: str) -> _ChangelogLine | None:
    """Parse a record, None for a line that is none."""
    match = _LINE.match(line)
    if match is None:
        return None
    try:
        time = datetime.strptime(f"{match['day']} {match['clock']}", "%Y.%m.%d %H:%M:%S").replace(tzinfo=timezone.utc)
        when = time.timestamp() + float(f"0.{match['part'][:9]}")
        attributes = dict(part.split("=", 1) for part in match["more"].split())
        return _ChangelogLine(int(match["number"]), line, when, _record_from_match(match, attributes, when, log_name))
    except (ValueError, OverflowError):
        return None


def _record_from_match(match: re.Match[str], attributes: dict[str, str], when: float, log_name: str) -> AuditRecord:
    path = f"[{match['parent'] or match['target']}]"
    if match["name"]:
        path += f"/{match['name']}"
    new_path = ""
    if match["old"]:
        path, new_path = f"[{match['old_parent']}]/{match['old']}", path
    # Lustre's jobid_var=SLURM_JOB_ID; else it is a program's name and a uid.
    job, source_of_job, command = attributes.get("j", ""), "log", ""
    if not re.fullmatch("[0-9]{1,10}", job):
        job, source_of_job, command = "", "", job
    uid_text = attributes.get("u", "").split(":")[0]
    uid = -1
    if re.fullmatch("[0-9]{1,10}", uid_text):
        uid = int(uid_text)
    return AuditRecord(
        when,
        SOURCE,
        f"{log_name}:{match['number']}",
        _OPERATIONS.get(match["kind"], match["kind"]),
        path,
        new_path,
        host=attributes.get("nid", ""),
        uid=uid,
        job=job,
        by=source_of_job,
        command=command,
    )
