"""The optional steps: hyperpod_kit.steps, where a key that is written turns its step on."""

from __future__ import annotations

from hyperpod_kit.config.decode_fields import decode_dataclass
from hyperpod_kit.config.section import Section
from hyperpod_kit.model.optional_steps import OptionalSteps


def decode_steps(kit: Section) -> OptionalSteps:
    """Decode the optional steps that are on."""
    return decode_dataclass(OptionalSteps, kit.child_or_empty_stand_in("steps", required=False))
