"""All parsers that read what another wrote."""

from __future__ import annotations

from typing import List

from tests.hostile.fuzz import (
    checkpoint_parsers,
    data_parsers,
    foreign_parsers,
    format_parsers,
    job_parsers,
    kept_parsers,
    node_parsers,
    root_parsers,
    storage_parsers,
    tensor_parsers,
    tool_parsers,
)
from tests.hostile.fuzz.engine import Parser

PARSERS: List[Parser] = [
    *checkpoint_parsers.PARSERS,
    *data_parsers.PARSERS,
    *foreign_parsers.PARSERS,
    *format_parsers.PARSERS,
    *job_parsers.PARSERS,
    *kept_parsers.PARSERS,
    *node_parsers.PARSERS,
    *root_parsers.PARSERS,
    *storage_parsers.PARSERS,
    *tensor_parsers.PARSERS,
    *tool_parsers.PARSERS,
]
