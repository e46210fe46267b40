"""Jinja2 as the bundle uses it: strict about undefined names, and nothing reaches a unit or a script unquoted.

A value that is not plain must have gone through one of the filters:

    {{ path | systemd_quote }}   one word of an Exec line
    {{ text | unit_text }}       the rest of a line, such as Description=
    {{ word | shell_quote }}     one word of a shell script

Whatever else would be printed ends the rendering, so a template that forgets a filter cannot be shipped: at the latest
the first odd value is refused, never passed on. systemd's rules: systemd.syntax(7), systemd.service(5) "Command lines".
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from pathlib import Path
from typing import Any

import jinja2

from hyperpod_kit.errors import BundleError

PLAIN = re.compile(r"[A-Za-z0-9_./:@+=-]*")
"""What means the same to a shell, to systemd and to a reader. No comma: it separates mount options."""


class Quoted(str):
    """Text that a filter has made ready for its place."""

    __slots__ = ()


def systemd_quote(value: object) -> Quoted:
    """Quote one word of a unit's Exec line, with systemd's specifiers (%) and variables ($) taken literally.

    Raises ValueError for control characters, which have no business in a unit.
    """
    text = _require_printable(value)
    for special, literal in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(special, literal)
    return Quoted(f'"{text}"')


def escape_unit_line(value: object) -> Quoted:
    """The rest of a line of a unit that is no Exec line. Raises ValueError for what would not stay on its line."""
    text = _require_printable(value)
    if text != text.strip() or text.endswith("\\"):
        raise ValueError(f"the line of a unit cannot begin or end like {_shorten_ascii(text)}")
    return Quoted(text.replace("%", "%%"))


def shell_quote(value: object) -> Quoted:
    """Quote one word of a shell script. Raises ValueError for control characters."""
    return Quoted(shlex.quote(_require_printable(value)))


def make_jinja_environment(templates: Path) -> jinja2.Environment:
    """The environment that renders every template under `templates`."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(templates / "systemd"), str(templates)]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_require_plain_or_quoted,
    )
    env.filters |= {"shell_quote": shell_quote, "systemd_quote": systemd_quote, "unit_text": escape_unit_line}
    return env


def render_template(env: jinja2.Environment, template: str, **variables: Any) -> bytes:
    """Render one template to bytes. Raises BundleError with the template and the line."""
    try:
        return env.get_template(template).render(**variables).encode()
    except jinja2.TemplateNotFound as err:
        raise BundleError(
            f"there is no template {err.name} under templates/", hint="install hyperpod-kit again"
        ) from err
    except jinja2.TemplateSyntaxError as err:
        raise BundleError(f"templates/{err.name}, line {err.lineno}: {err.message}") from err
    except (jinja2.UndefinedError, ValueError) as err:
        raise BundleError(f"template {template}: {err}") from err


def _require_plain_or_quoted(value: object) -> object:
    """Return the value for Jinja2's `finalize`; raise ValueError unless it is plain or went through a
    quoting filter."""
    if isinstance(value, (Quoted, jinja2.Undefined)):  # Undefined raises by itself, with the name
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    raise ValueError(f"{_shorten_ascii(value)} must go through systemd_quote, unit_text or shell_quote")


def _require_printable(value: object) -> str:
    text = str(value)
    if any(_is_unfit_character(char) for char in text):
        raise ValueError(f"a unit cannot hold {_shorten_ascii(text)}")
    return text


def _is_unfit_character(char: str) -> bool:
    """Return whether a unit cannot hold the character.

    These are control characters, line breaks among them (Cc); halves of a surrogate pair, which no
    file can hold (Cs); noncharacters of Unicode, for which systemd passes over the whole line
    (src/basic/utf8.c: unichar_is_valid).
    """
    code = ord(char)
    return unicodedata.category(char) in ("Cc", "Cs") or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def _shorten_ascii(value: object) -> str:
    shown = ascii(value)
    if len(shown) <= 60:
        return shown
    return shown[:57] + "…"
