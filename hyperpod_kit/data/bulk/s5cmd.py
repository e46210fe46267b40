"""Objects of S3 to files, by s5cmd."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, BinaryIO

from hyperpod_kit.data.bulk.staging import ContentMismatch, FetchedPart, StagedFile
from hyperpod_kit.data.bulk.throttle import ProcessThrottle
from hyperpod_kit.data.reading.objects import split_url
from hyperpod_kit.errors import DataError, Unreachable
from hyperpod_kit.extras import requirements_install_command
from hyperpod_kit.system.process import make_parent_death_hook
from hyperpod_kit.untrusted import by_descriptor, parse
from hyperpod_kit.untrusted.text import clean_one_line

_RETRIES = 10
_WILDCARDS = frozenset("*?[]\\")
_MAX_LINE = 1 << 20
"""Characters of a line of s5cmd's."""
_MAX_ETAG_CHANGES = 3
"""Objects that come twice with the same bytes and another ETag, after which ETags of this source are taken for none."""


def find_s5cmd() -> str:
    """Locate s5cmd. Raises DataError."""
    beside = Path(sys.executable).with_name("s5cmd")
    if beside.exists():
        return str(beside)
    path = shutil.which("s5cmd")
    if path is None:
        raise DataError(
            "staging from s3:// needs s5cmd, which is not installed", hint=requirements_install_command("data")
        )
    return path


class S5cmd:
    """See StageEngine. `rate`: bytes a second, None for as many as there are."""

    def __init__(self, url: str, *, rate: float | None, workers: int) -> None:
        bucket, key = split_url(url)
        if _WILDCARDS & set(key):
            raise DataError(f"{url} has a wildcard, which `data stage` does not support", hint="name a prefix")
        self._bucket, self._key = bucket, key.rstrip("/")
        self._rate, self._workers = rate, workers
        self._single = False
        self._digests: dict[str, str] = {}
        self._read_twice = self._same = 0
        self._lock = threading.Lock()
        self.last_error = ""

    def files(self) -> Iterator[StagedFile]:
        """See StageEngine: of a prefix as of a directory, or the one object of that name."""
        below = _with_slash(self._key)
        has_files = False
        for file in self._list_objects(f"s3://{self._bucket}/{below}*", below):
            has_files = True
            yield file
        if not has_files and self._key:
            self._single = True
            folder, _, name = self._key.rpartition("/")
            for file in self._list_objects(f"s3://{self._bucket}/{self._key}", _with_slash(folder)):
                if file.path == name:
                    yield file

    def _list_objects(self, pattern: str, stripped_prefix: str) -> Iterator[StagedFile]:
        with self._running_s5cmd("ls", "--etag", pattern) as process:
            assert process.stdout is not None
            for line in process.stdout:
                file = parse_listing_line(line, f"s3://{self._bucket}/", stripped_prefix)
                if file is not None:
                    yield file
            if process.wait() and "no object found" not in self.last_error:
                raise Unreachable(
                    f"{pattern} cannot be listed: {self.last_error}", hint="aws s3 ls, with the same credentials"
                )

    def fetch_skipping_failed(self, group: Sequence[StagedFile], parts_directory: str) -> Iterator[FetchedPart]:
        """See StageEngine."""
        folder = self._key
        if self._single:
            folder = self._key.rpartition("/")[0]
        prefix = f"s3://{self._bucket}/{_with_slash(folder)}"
        orders = os.path.join(parts_directory, "orders")
        with by_descriptor.open_stream_for_writing(orders, "w") as stream:
            for number, file in enumerate(group):
                path = os.path.join(parts_directory, str(number))
                stream.write(f"cp --raw {shlex.quote(prefix + file.path)} {shlex.quote(path)}\n")
        with self._running_s5cmd("run", orders) as process, contextlib.ExitStack() as stack:
            throttle = None
            if self._rate is not None:
                throttle = stack.enter_context(ProcessThrottle(process.pid, parts_directory, self._rate))
            fetched_bytes = 0
            assert process.stdout is not None
            for line in process.stdout:
                arrived = parse_copied_file_number(line)
                if arrived is not None and arrived < len(group):
                    fetched_bytes += group[arrived].size
                    yield FetchedPart(arrived, os.path.join(parts_directory, str(arrived)))
            if throttle is not None:
                throttle.sleep_until_bytes_are_due(fetched_bytes)

    def is_verified_or_raise_on_mismatch(self, file: StagedFile, part_path: str) -> bool:
        """See StageEngine. A mismatch raises ContentMismatch once: the same bytes again are accepted as unverified.

        An object that is encrypted with a key of KMS has an ETag that is no digest, and comes with the same bytes
        again.
        """
        with self._lock:
            if self._read_twice >= _MAX_ETAG_CHANGES and not self._same:
                return False
        with open(part_path, "rb") as stream:
            verdict, digest = etag_verdict_and_md5_or_empty(stream, file.size, file.etag)
        with self._lock:
            if verdict is EtagVerdict.SAME:
                self._same += 1
            elif verdict is EtagVerdict.OTHER:
                if self._digests.get(file.path) != digest:
                    self._digests[file.path] = digest
                    raise ContentMismatch(f"{file.path}: MD5 {digest}, and its ETag is {file.etag}")
                self._read_twice += 1
        return verdict is EtagVerdict.SAME

    @contextlib.contextmanager
    def _running_s5cmd(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        argv = [find_s5cmd(), "--json", "--retry-count", str(_RETRIES), "--numworkers", str(self._workers)]
        if endpoint:
            argv += ["--endpoint-url", endpoint]
        process = subprocess.Popen(
            [*argv, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=make_parent_death_hook(os.getpid()),  # a kill of this process must not leave it at work
        )
        reader = threading.Thread(target=self._record_last_error_from, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            yield process
            process.wait()
        finally:
            process.kill()
            process.wait()
            reader.join(5)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _record_last_error_from(self, stream: IO[str] | None) -> None:
        """Keep the last error that s5cmd printed."""
        with contextlib.suppress(ValueError, OSError):
            for line in stream or ():
                self.last_error = parse_error_line(line) or self.last_error


def _with_slash(folder: str) -> str:
    """Return the prefix of the keys below a folder, "" for the whole bucket."""
    return f"{folder}/" if folder else ""


def parse_listing_line(line: str, bucket_url: str, prefix: str) -> StagedFile | None:
    """Parse a line of `s5cmd --json ls --etag`; None for what is no file.

    `bucket_url`: what the address begins with; `prefix`: what is removed from the key. Raises DataError for what
    is no such line, and for a key that has lines: each is an order of its own to `s5cmd run`.
    """
    try:
        item = parse.parse_json_object(line, _MAX_LINE)
        if item["type"] != "file":
            return None
        url, etag_text, size = item["key"], item.get("etag", ""), item.get("size", 0)
        # Whole seconds, as the time of an object is everywhere: so an index of s3:// fits its copy.
        when = int(datetime.fromisoformat(str(item["last_modified"]).replace("Z", "+00:00")).timestamp())
        if (
            not isinstance(url, str)
            or not isinstance(etag_text, str)
            or type(size) is not int
            or not 0 <= size < 1 << 63
        ):
            raise ValueError("fields of other types")
        url.encode()
    except (ValueError, KeyError, OverflowError) as err:
        raise DataError(
            f"s5cmd listed {clean_one_line(line)[:200]!r}: {type(err).__name__}: {clean_one_line(err)[:80]}"
        ) from None
    key = url[len(bucket_url) :]
    if not url.startswith(bucket_url) or "\n" in key or "\r" in key:
        raise DataError(
            f"{clean_one_line(url)!r} cannot be staged", hint="give a prefix without this object, or rename the object"
        )
    if not key or key.endswith("/"):
        return None
    return StagedFile(key.removeprefix(prefix), size, when * 10**9, etag_text)


def parse_copied_file_number(line: str) -> int | None:
    """Parse which file of a group a line of `s5cmd --json run` reports as copied; None for any other line."""
    try:
        report = parse.parse_json_object(line, _MAX_LINE)
    except ValueError:
        return None
    part = report.get("destination")
    if report.get("success") is not True or not isinstance(part, str):
        return None
    return parse.parse_decimal(os.path.basename(part))


def parse_error_line(line: str) -> str:
    """Parse the error in a line of s5cmd's; "" for an empty one."""
    message: Any = line.strip()
    with contextlib.suppress(ValueError, KeyError):
        message = parse.parse_json_object(line, _MAX_LINE)["error"]
    return clean_one_line(message)


# Whether a file is the object that an ETag is of: MD5 of the whole, or of the parts in which it was uploaded.

_MIB = 1 << 20
_USUAL_PART_SIZES = tuple(
    size * _MIB for size in (5, 8, 10, 15, 16, 25, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1024, 5120)
)
"""Sizes of parts that tools upload: boto3 and the AWS CLI 8 MiB, s5cmd 50 MiB."""

_MAX_CANDIDATES = 4
"""Sizes that are tried at a time: each costs an MD5 of the file."""


class EtagVerdict(enum.Enum):
    """What an ETag says of a file of the object's size."""

    SAME = "same"
    OTHER = "other"
    """It is not its MD5: other bytes, or an object whose ETag is none, as with SSE-KMS."""
    SILENT = "silent"
    """It is of parts whose sizes are not known."""


def etag_verdict_and_md5_or_empty(stream: BinaryIO, size: int, etag: str) -> tuple[EtagVerdict, str]:
    """Compare a file with an ETag; return the verdict, and the MD5 of the whole file where it was computed.

    Raises OSError.
    """
    match = re.fullmatch(r'"?([0-9a-f]{32})(?:-(\d+))?"?', etag)
    if match is None:
        return EtagVerdict.SILENT, ""
    expected, parts = match[1], int(match[2] or 0)
    if not parts:
        file_digest = hashlib.md5(usedforsecurity=False)
        while data := stream.read(_MIB):
            file_digest.update(data)
        if file_digest.hexdigest() == expected:
            return EtagVerdict.SAME, expected
        return EtagVerdict.OTHER, file_digest.hexdigest()
    candidates = [_MultipartDigest(length) for length in candidate_part_sizes(size, parts)]
    while candidates and (data := stream.read(_MIB)):
        for candidate in candidates:
            candidate.update(data)
    if any(candidate.digest() == expected for candidate in candidates):
        return EtagVerdict.SAME, ""
    return EtagVerdict.SILENT, ""


def candidate_part_sizes(size: int, parts: int) -> list[int]:
    """List the part sizes, in whole MiB, that give a file so many parts, the usual ones first."""
    smallest = -(-size // parts)
    largest = 5 << 40
    if parts > 1:
        largest = (size - 1) // (parts - 1)
    round_up = -(-smallest // _MIB) * _MIB
    return [
        size_of_part
        for size_of_part in dict.fromkeys((*_USUAL_PART_SIZES, round_up))
        if smallest <= size_of_part <= largest
    ][:_MAX_CANDIDATES]


class _MultipartDigest:
    """MD5 of the MD5s of parts of one length, a multiple of what is given at a time."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._at = 0
        self._part = hashlib.md5(usedforsecurity=False)
        self._digest_of_parts = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        """Add the next bytes."""
        if self._at == self._length:
            self._finish_part()
        self._part.update(data)
        self._at += len(data)

    def digest(self) -> str:
        """Return the digest of all bytes added. May be called once."""
        self._finish_part()
        return self._digest_of_parts.hexdigest()

    def _finish_part(self) -> None:
        self._digest_of_parts.update(self._part.digest())
        self._part, self._at = hashlib.md5(usedforsecurity=False), 0
