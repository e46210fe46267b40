"""The frame of a page that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

import html
from pathlib import Path

from hyperpod_kit.errors import Absent
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import clean_one_line

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; }
.key span { display: inline-block; margin-right: 1rem; } .key i { display: inline-block; width: .8em; height: .8em; }
"""


def clean_and_escape_html(value: object, max_length: int = 500) -> str:
    """Return a foreign text as it may stand in a page: without control characters, shortened,
    HTML-escaped."""
    return html.escape(clean_one_line(value, max_length))


def render_html_page(title: str, body: str) -> str:
    """Return the whole HTML document.

    `body`: HTML made by this program, in which every foreign text is escaped.
    """
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{clean_and_escape_html(title)}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>{clean_and_escape_html(title)}</h1>
{body}
</body></html>
"""


def write_html_page(path: Path, document: str) -> None:
    """Write the document to `path`. Raises Absent when it cannot be written."""
    try:
        by_descriptor.write_bytes(path, document.encode("utf-8", "replace"))
    except OSError as err:
        raise Absent(f"cannot write {path}: {err.strerror}") from err
