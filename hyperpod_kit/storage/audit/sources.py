"""The kinds of logs, and how a file of one is read: by lines, however large it is or becomes when it is unpacked."""

from __future__ import annotations

import codecs
import gzip
import zlib
from pathlib import Path
from typing import IO, Iterator, NamedTuple

from hyperpod_kit.errors import Absent
from hyperpod_kit.storage.audit.logs import changelog, cloudtrail, node_log, s3_access_log
from hyperpod_kit.storage.audit.record import OVERLONG, AuditGap, Entry, Importer
from hyperpod_kit.untrusted.files import open_nonblocking


class AuditSource(NamedTuple):
    """A kind of log.

    `max_line`: characters that a line of such a log may have; a longer one is a gap and is never held whole.
    """

    importer: Importer
    max_line: int


IMPORTERS: dict[str, AuditSource] = {
    "node": AuditSource(node_log.parse_entries_marking_chain_gaps, 256 << 10),
    "cloudtrail": AuditSource(cloudtrail.parse_entries_until_damage, cloudtrail.CHUNK),
    "s3-access-log": AuditSource(s3_access_log.parse_entries_with_best_effort_gap, 16 << 10),
    "changelog": AuditSource(changelog.parse_entries_marking_sequence_gaps, 16 << 10),
}
"""Kind -> what reads it."""


def list_files(paths: tuple[Path, ...]) -> list[Path]:
    """List files, and every file below directories, in a stable order. Raises Absent."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.is_file())
        elif path.is_file():
            files.append(path)
        else:
            raise Absent(f"there is no {path}")
    return files


def read_entries_marking_damage(kind: str, path: Path) -> Iterator[Entry]:
    """Read the entries of one file, gzip or plain; where it is damaged what came before that, and a gap.

    Raises Absent when it cannot be opened.
    """
    source = IMPORTERS[kind]
    try:
        raw = open(path, "rb", opener=open_nonblocking)  # noqa: SIM115  # closed below
    except OSError as err:
        raise Absent(f"cannot read {path}: {err}") from err
    damage: list[str] = []
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: IO[bytes] = raw
        if packed:
            stream = gzip.GzipFile(fileobj=raw)  # type: ignore[assignment]
        yield from source.importer(_read_lines_replacing_overlong(stream, source, damage), path.name)
    if damage:
        yield AuditGap(
            0.0, 0.0, source_field_of_records(kind), f"{path.name}:damaged", f"{path.name} is damaged: {damage[0]}", ""
        )


def source_field_of_records(kind: str) -> str:
    """Return what its records call their source."""
    return {"changelog": changelog.SOURCE}.get(kind, kind)


def _read_lines_replacing_overlong(stream: IO[bytes], source: AuditSource, damage: list[str]) -> Iterator[str]:
    """Yield lines, each with its end, and OVERLONG in the place of one that is too long; of a file of CloudTrail,
    which is one line, pieces.

    Ends at damage, which is added to `damage`.
    """
    by_line = source.importer is not cloudtrail.parse_entries_until_damage
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while True:
            line = stream.readline(source.max_line)
            if not line:
                return
            if not by_line or line.endswith(b"\n") or len(line) < source.max_line:
                yield decoder.decode(line, final=by_line)
                continue
            while line and not line.endswith(b"\n"):
                line = stream.readline(source.max_line)
            yield OVERLONG
    except (OSError, EOFError, zlib.error) as err:
        damage.append(str(err) or type(err).__name__)
