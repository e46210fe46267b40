"""A record of a file as a sample: decoded by the file's format and name, or refused with the place where it lies."""

from __future__ import annotations

from typing import Any

from hyperpod_kit.data.formats import json_lines
from hyperpod_kit.data.formats.lines import has_json_name
from hyperpod_kit.data.index.layout import IndexedFile
from hyperpod_kit.errors import BadRecord


def decode_record(record: Any, file: IndexedFile, number: int, start: int) -> Any:
    """Decode a record as its format and its file's name say. Raises BadRecord."""
    if not isinstance(record, bytes) or file.format == "whole":
        return record
    try:
        if has_json_name(file.path):
            return json_lines.decode(record)
        return record.decode()
    except (ValueError, RecursionError) as err:
        raise make_bad_record_error(err, file, number, start) from None


def make_bad_record_error(err: Exception, file: IndexedFile, number: int, start: int) -> BadRecord:
    """Return the BadRecord error for a record that cannot be decoded."""
    return BadRecord(f"{file.path}, at {start} (sample {number}): {type(err).__name__}: {err}")
