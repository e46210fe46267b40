"""Decode every sample of a file once, while it is indexed, so that training does not meet one that cannot be."""

from __future__ import annotations

import numpy as np

from hyperpod_kit.data.dataset import decode_record
from hyperpod_kit.data.formats.table import Scan, import_format_module
from hyperpod_kit.data.index.layout import POINT, IndexedFile
from hyperpod_kit.data.index.sources import SourceEntry
from hyperpod_kit.data.reading.source_files import SourceFiles
from hyperpod_kit.errors import BadRecord

_MEMORY_BYTES = 64 << 20


def drop_or_refuse_bad_records(path: str, file: SourceEntry, scan: Scan, on_bad: str) -> Scan:
    """Decode every record of a file; return the scan without the bad ones, and with their count.

    Raises BadRecord unless `on_bad` is "skip".
    """
    points = np.zeros(len(scan.points), POINT)
    points["raw"], points["plain"] = scan.points[:, 0], scan.points[:, 1]
    count = len(scan.starts)
    indexed_file = IndexedFile(
        0, path, file.format, file.size, file.mtime_ns, scan.digest, 0, count, scan.skipped, points
    )
    files = SourceFiles()
    reader = import_format_module(file.format).reader(files, _MEMORY_BYTES)
    good = np.ones(count, bool)
    try:
        for number, (start, length) in enumerate(zip(scan.starts.tolist(), scan.lengths.tolist(), strict=True)):
            try:
                decode_record(reader.record(indexed_file, start, length), indexed_file, number, start)
            except BadRecord:
                if on_bad != "skip":
                    raise
                good[number] = False
    finally:
        files.close()
    bad = count - int(good.sum())
    return scan._replace(starts=scan.starts[good], lengths=scan.lengths[good], skipped=scan.skipped + bad)
