"""What a template prints is quoted for its place or plain, and everything else ends the rendering."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from hyperpod_kit.bundle.render import (
    escape_unit_line,
    make_jinja_environment,
    render_template,
    shell_quote,
    systemd_quote,
)
from hyperpod_kit.errors import BundleError


@pytest.fixture
def env(tmp_path: Path) -> jinja2.Environment:
    for name, text in {
        "bare": "X={{ word }}\n",
        "exec": "ExecStart=/bin/x {{ word | systemd_quote }}\n",
        "text": "Description={{ word | unit_text }}\n",
        "shell": "x {{ word | shell_quote }}\n",
        "joined": "X={{ (word | shell_quote) ~ 'a;b' }}\n",
        "undefined": "X={{ nobody }}\n",
    }.items():
        (tmp_path / name).write_text(text)
    return make_jinja_environment(tmp_path)


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("plain", '"plain"'),
        ("", '""'),
        ("a b", '"a b"'),
        ('"', '"\\""'),
        ("50%", '"50%%"'),
        ("$(id)", '"$$(id)"'),
        ("${HOME}", '"$${HOME}"'),
        ("a\\b", '"a\\\\b"'),
        ("ü;'#", '"ü;\'#"'),
    ],
)
def test_systemd_takes_values_literally(value: str, quoted: str) -> None:
    assert systemd_quote(value) == quoted


@pytest.mark.parametrize("value", ["a\nExecStartPre=/bin/evil", "a\r", "\0", "\t", "\x1b[31m", "\ud800", "\x85"])
def test_control_characters_reach_nothing(env: jinja2.Environment, value: str) -> None:
    for quote in (systemd_quote, escape_unit_line, shell_quote):
        with pytest.raises(ValueError, match="cannot hold"):
            quote(value)
    for template in ("exec", "text", "shell"):
        with pytest.raises(BundleError, match=f"template {template}: a unit cannot hold"):
            render_template(env, template, word=value)


@pytest.mark.parametrize("value", [" a", "a ", "a\\", "\u2003a"])
def test_a_line_of_text_stays_one_line(value: str) -> None:
    with pytest.raises(ValueError, match="cannot begin or end like"):
        escape_unit_line(value)


def test_text_keeps_its_percent_signs(env: jinja2.Environment) -> None:
    assert render_template(env, "text", word="50 % of $x") == b"Description=50 %% of $x\n"


@pytest.mark.parametrize("value", ["a b", "$(id)", "a;b", "%n", "a,b", "'", "ü", "a\n", None, True, ["x"], b"x"])
def test_a_value_without_its_filter_is_refused(env: jinja2.Environment, value: object) -> None:
    with pytest.raises(BundleError, match=r"template bare: .* must go through systemd_quote, unit_text or shell_quote"):
        render_template(env, "bare", word=value)


@pytest.mark.parametrize("value", ["", "plain", "/opt/a-b_c.d@e:f=g+h", 30, 2.5])
def test_plain_values_need_none(env: jinja2.Environment, value: object) -> None:
    assert render_template(env, "bare", word=value) == f"X={value}\n".encode()


def test_what_is_added_to_a_quoted_word_is_looked_at_again(env: jinja2.Environment) -> None:
    with pytest.raises(BundleError, match="must go through"):
        render_template(env, "joined", word="a b")


def test_an_undefined_name_is_named(env: jinja2.Environment) -> None:
    with pytest.raises(BundleError, match="template undefined: 'nobody' is undefined"):
        render_template(env, "undefined")
