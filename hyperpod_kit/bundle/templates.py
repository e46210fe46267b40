"""Jinja2 as the bundle uses it: strict about undefined names, quoting by filter, no autoescape."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import jinja2

from hyperpod_kit.errors import BundleError


def systemd_quote(value: object) -> str:
    """One word of a unit's Exec line: quoted, with systemd's own specifiers (%) and variables ($) taken literally.

    Raises ValueError for a line break, which no quoting of a unit file can carry.
    """
    text = str(value)
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError(f"a unit cannot hold {text!r}")
    for special, literal in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(special, literal)
    return f'"{text}"'


def environment(templates: Path) -> jinja2.Environment:
    """The environment that renders every template under `templates`."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(templates / "systemd"), str(templates)]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["shell_quote"] = lambda value: shlex.quote(str(value))
    env.filters["systemd_quote"] = systemd_quote
    return env


def render(env: jinja2.Environment, template: str, **variables: Any) -> bytes:
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
