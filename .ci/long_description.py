"""What an index shows of the package: README.md without what leads nowhere there. The build calls it (pyproject.toml).

The project has no public address, so a link to one of its files becomes the file's name, and a picture of it is left
out. Standard library only: the tests read it without hatchling.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTE = "Files named here are in the source distribution and in the repository that it was built from.\n"

_PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")


def of_readme(text: str) -> str:
    """README.md as the long description."""
    return f"{_LINK.sub(_name_file, _PICTURE.sub('', text))}\n{NOTE}"


def _name_file(link: re.Match[str]) -> str:
    words, path = link.groups()
    return f"`{path}`" if words == path else f"{words} (`{path}`)"


def get_metadata_hook() -> type:
    """What hatchling asks a build script for."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class LongDescription(MetadataHookInterface):
        """Sets the readme of the project."""

        def update(self, metadata: dict[str, Any]) -> None:
            text = of_readme((ROOT / "README.md").read_text(encoding="utf-8"))
            metadata["readme"] = {"content-type": "text/markdown", "text": text}

    return LongDescription
