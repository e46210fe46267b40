"""All parsers that read what another wrote."""

from __future__ import annotations

from typing import List

from tests.hostile.fuzz import checkpoint_parsers, word_parsers
from tests.hostile.fuzz.engine import Parser

PARSERS: List[Parser] = [*checkpoint_parsers.PARSERS, *word_parsers.PARSERS]
