"""A rich console on which text is only text: what it prints is cleaned where it becomes characters of the screen.

rich takes bells and backspaces out of a text and leaves escape sequences in.
"""

from __future__ import annotations

from typing import Iterable, Optional

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hyperpod_kit.untrusted.text import replace_unprintable_in_lines


class CleanConsole(Console):
    """Also what lies beside bars: each of them renders its parts through this."""

    def render(self, renderable: RenderableType, options: Optional[ConsoleOptions] = None) -> Iterable[Segment]:
        """As Console; segments of control are rich's own."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield Segment(replace_unprintable_in_lines(text), style)
