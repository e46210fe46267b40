"""Figures of the documentation: the dark variant of each differs from the light one in its colours alone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ASSETS = Path(__file__).resolve().parents[2] / "docs/assets"
LIGHT = sorted(ASSETS.glob("*-light.svg"))
COLOUR = re.compile(r"#[0-9a-f]{6}")
SMALLEST = 13.0
"""Pixels of a letter where a figure is shown in its own width."""


def test_there_are_figures() -> None:
    assert LIGHT


@pytest.mark.parametrize("light", LIGHT, ids=lambda path: path.name)
def test_the_dark_figure_has_the_same_words_in_the_same_places(light: Path) -> None:
    dark = light.with_name(light.name.replace("-light", "-dark"))
    assert COLOUR.sub("#", light.read_text()) == COLOUR.sub("#", dark.read_text())


@pytest.mark.parametrize("light", LIGHT, ids=lambda path: path.name)
def test_every_letter_is_readable_and_the_figure_has_a_description(light: Path) -> None:
    root = ElementTree.fromstring(light.read_text())
    sizes = [float(element.attrib["font-size"]) for element in root.iter() if "font-size" in element.attrib]
    assert min(sizes) >= SMALLEST
    assert root.find("{http://www.w3.org/2000/svg}desc") is not None
