"""What people are alerted to, and the channels that it takes to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Alert:
    """One alert. `key`: what it is about, one alert for each at a time; `to`: mail addresses."""

    key: str
    subject: str
    sentence: str
    to: tuple[str, ...] = ()


class AlertChannel(NamedTuple):
    """One recipient of one sink, which accepts an alert for itself. `sink`: `mail` or `sns`; `address`: a mail address
    or the ARN of a topic."""

    sink: str
    address: str

    def __str__(self) -> str:
        return f"{self.sink} {self.address}"
