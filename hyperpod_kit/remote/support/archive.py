"""A support archive: its members, what was left out, and the file that they become."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hyperpod_kit.errors import UsageError
from hyperpod_kit.remote.scrub import Scrubber
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted.terminal import json_text_without_nan

FORMAT = "hpk-support/1"
MANIFEST = "MANIFEST.json"
MOST_BYTES = 64 << 20
"""Of all members, not compressed."""


@dataclass(frozen=True)
class ArchiveMember:
    """A file of the archive. `source`: what it was read from, or asked; `cut`: whether only a part was taken."""

    name: str
    data: bytes
    source: str
    cut: bool = False


@dataclass(frozen=True)
class LeftOut:
    """What is not in the archive, and why."""

    what: str
    reason: str


@dataclass
class SupportArchive:
    """Every text that is added is scrubbed here, so that none can be forgotten."""

    cluster: str
    made_at: float
    scrubber: Scrubber = field(default_factory=Scrubber)
    members: list[ArchiveMember] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the bytes of all members."""
        return sum(len(member.data) for member in self.members)

    def add_text(self, name: str, text: str, source: str, *, cut: bool = False) -> None:
        """Add a text; where there is no room for it any more, it is noted as left out."""
        self._add(name, self.scrubber.text(text).encode("utf-8", "replace"), source, cut)

    def add_value(self, name: str, value: Any, source: str) -> None:
        """Add a value as JSON."""
        # Through JSON first: what is neither number nor text (a time, an enum) becomes a text.
        plain = json.loads(json_text_without_nan(value))
        text = json.dumps(self.scrubber.value(plain), indent=2) + "\n"
        self._add(name, text.encode(), source, False)

    def leave_out(self, what: str, reason: str) -> None:
        """Note what is not in the archive."""
        self.left_out.append(LeftOut(self.scrubber.text(what), self.scrubber.text(reason)))

    def _add(self, name: str, data: bytes, source: str, cut: bool) -> None:
        if self.size + len(data) > MOST_BYTES:
            self.leave_out(name, f"the archive would have more than {MOST_BYTES >> 20} MiB")
            return
        self.members.append(ArchiveMember(name, data, self.scrubber.text(source), cut))

    def manifest(self) -> dict[str, Any]:
        """Return what the archive says of itself."""
        return {
            "format": FORMAT,
            "cluster": self.cluster,
            "made_at": self.made_at,
            "files": [
                {"name": member.name, "bytes": len(member.data), "source": member.source, "cut": member.cut}
                for member in self.members
            ],
            "left_out": [asdict(left_out) for left_out in self.left_out],
            "removed": dict(sorted(self.scrubber.removed.items())),
        }

    def require_free(self, path: Path, *, overwrite: bool) -> None:
        """Raise UsageError where a file is in the way."""
        if os.path.lexists(path) and not overwrite:
            raise UsageError(f"{path} already exists", hint="--overwrite, or another --out")

    def write(self, path: Path, *, overwrite: bool) -> int:
        """Write the archive, mode 0600, whole or not at all; return its bytes. Raises UsageError."""
        self.require_free(path, overwrite=overwrite)
        data = self._compressed(path.name.partition(".")[0] or "support")
        try:
            atomic_file.write_atomically(path, data, 0o600)
        except OSError as err:
            raise UsageError(f"cannot write {path}: {err.strerror}", hint="--out FILE.tar.gz") from err
        return len(data)

    def _compressed(self, folder: str) -> bytes:
        manifest = json.dumps(self.manifest(), indent=2).encode() + b"\n"
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=int(self.made_at)) as stream, tarfile.open(
            fileobj=stream, mode="w"
        ) as tar:
            for name, data in ((MANIFEST, manifest), *((member.name, member.data) for member in self.members)):
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(self.made_at)
                tar.addfile(entry, io.BytesIO(data))
        return buffer.getvalue()
