"""What there is to say of one key of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from hyperpod_kit.config.settings.patterns import Pattern


@dataclass(frozen=True)
class Field:
    """`text`: one sentence or two.

    choices: all values there are; request: the field of CreateCluster whose limits, in the installed botocore, count;
    pattern: what the text, or each text of a list, must look like.
    """

    text: str
    choices: tuple[str, ...] = ()
    request: Optional[str] = None
    pattern: Optional[Pattern] = None
