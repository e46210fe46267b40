"""Files of a directory to files, by threads: for mounts, where no s5cmd helps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from hyperpod_kit.data.bulk.staging import WORK_DIRECTORY, ContentMismatch, FetchedPart, StagedFile
from hyperpod_kit.data.reading import digests
from hyperpod_kit.data.reading.listing import is_directory, list_files
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.data.reading.source_files import open_file
from hyperpod_kit.errors import NoData
from hyperpod_kit.system.bounded_thread import CallUnanswered
from hyperpod_kit.system.token_bucket import TokenBucket
from hyperpod_kit.untrusted import by_descriptor

_BLOCK = 1 << 20


class Directory:
    """See StageEngine."""

    def __init__(self, source: str, *, rate: float | None, workers: int, reply_timeout: float) -> None:
        self._mounts = SourceMounts(reply_timeout)
        if not is_directory(self._mounts, source):
            raise NoData(f"{source} is not a directory", hint="give a directory, or s3://BUCKET/PREFIX")
        self._source = source
        self._bucket = None if rate is None else TokenBucket(rate)
        self._workers = workers
        self._digests: dict[str, str] = {}
        self.last_error = ""

    def files(self) -> Iterator[StagedFile]:
        """See StageEngine: regular files, and what links to files lead to."""
        for path, size, mtime_ns in list_files(self._mounts, self._source, lambda name: name != WORK_DIRECTORY):
            yield StagedFile(path, size, mtime_ns)

    def fetch_skipping_failed(self, group: Sequence[StagedFile], parts_directory: str) -> Iterator[FetchedPart]:
        """See StageEngine."""
        with ThreadPoolExecutor(min(self._workers, len(group))) as pool:
            under_way = {
                pool.submit(
                    self._copy_to_part_path_recording_digest, file, os.path.join(parts_directory, str(number))
                ): number
                for number, file in enumerate(group)
            }
            try:
                for future in as_completed(under_way):
                    try:
                        yield FetchedPart(under_way[future], future.result())
                    except CallUnanswered as err:
                        self.last_error = f"{group[under_way[future]].path}: {err.strerror}"
                        return  # so many more would wait as long
                    except (OSError, ContentMismatch) as err:
                        self.last_error = str(err)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _copy_to_part_path_recording_digest(self, file: StagedFile, part_path: str) -> str:
        path = os.path.join(self._source, file.path)
        with contextlib.closing(open_file(path, self._mounts)) as source, by_descriptor.open_stream_for_writing(
            part_path, "wb"
        ) as target:
            if (source.size, source.mtime_ns) != (file.size, file.mtime_ns):
                raise ContentMismatch(f"{file.path} changed after it was listed")

            def read_piece(at: int, size: int) -> bytes:
                piece = bytearray()
                while len(piece) < size and (data := source.read(at + len(piece), min(_BLOCK, size - len(piece)))):
                    if self._bucket is not None:
                        self._bucket.wait_for_one_token_and_charge(len(data))
                    if not (data[0] or data[-1]) and data.count(0) == len(data):
                        target.seek(len(data), os.SEEK_CUR)  # zeros are left as a hole, as they may be in the source
                    else:
                        target.write(data)
                    piece += data
                return bytes(piece)

            pieces = digests.digests_of_pieces(read_piece, file.size, _ignore_progress)
            target.truncate(file.size)
            fingerprint = source.stat_fingerprint()
        if fingerprint != (file.size, file.mtime_ns):
            raise ContentMismatch(f"{file.path} changed while it was copied")
        self._digests[file.path] = digests.digest_of_file(pieces, file.size)
        return part_path

    def is_verified_or_raise_on_mismatch(self, file: StagedFile, part_path: str) -> bool:
        """See StageEngine."""
        with open(part_path, "rb") as stream:
            digest = digests.digest_of_file(
                digests.digests_of_pieces(lambda at, size: stream.read(size), file.size, _ignore_progress), file.size
            )
        expected = self._digests.pop(file.path)
        if digest != expected:
            raise ContentMismatch(f"{file.path}: expected digest {expected}, found {digest}")
        return True


def _ignore_progress(count: int) -> None:
    """Ignore progress."""
