"""`config show`: what is printed is the same configuration again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.effective import render_yaml_marking_defaults
from hyperpod_kit.config.load import load
from hyperpod_kit.config.reading import yaml_text
from hyperpod_kit.config.settings.access_points import write_access_points
from hyperpod_kit.config.settings.schema_recorder import KeyRead, build_effective_values
from tests.property.every_field import ACCESS_POINTS, document
from tests.support.examples import examples

if TYPE_CHECKING:
    Hk = Callable[..., Any]

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"


def configuration_of(output: str) -> str:
    """What `config show` printed: YAML, or in JSON a document that has it."""
    if not output.startswith("{"):
        return output
    return json.dumps(json.loads(output)["configuration"])


@pytest.mark.parametrize("full", [False, True])
def test_what_is_shown_is_the_same_configuration(tmp_path: Path, full: bool, hk: Hk) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document()) if full else EXAMPLE.read_text())
    again = tmp_path / "again.yaml"
    for file in (path, again):
        write_access_points(file, tuple(ACCESS_POINTS.values()))
    for options in ((), ("--effective",), ("--json",), ("--effective", "--json")):
        shown = hk("config", "show", str(path), *options)
        assert (shown.code, shown.err) == (0, "")
        again.write_text(configuration_of(shown.out))
        assert load(again) == load(path)
    first = hk("config", "show", str(path), "--effective", "--json").out
    assert hk("config", "show", str(again), "--effective", "--json").out == first


def test_every_default_is_there_and_marked(tmp_path: Path, hk: Hk) -> None:
    path = tmp_path / "c.json"
    path.write_text(EXAMPLE.read_text())
    lines = hk("config", "show", str(path), "--effective").out.splitlines()
    assert "    lifecycle_mode: on_create" in lines
    assert "    node_provisioning_mode: null  # default" in lines
    assert "    drain: false  # default" in lines and "    interval: 30" in lines
    assert '    dir_mode: "0755"  # default' in lines
    assert "  homes: null  # default" in lines
    plain = hk("config", "show", str(path)).out
    assert "default" not in plain and "drain" not in plain


def test_what_is_wrong_is_not_shown_but_said(tmp_path: Path, hk: Hk) -> None:
    path = tmp_path / "c.json"
    path.write_text(EXAMPLE.read_text().replace('"demo"', '"-"'))
    refused = hk("config", "show", str(path), "--effective")
    assert (refused.code, refused.out) == (1, "") and "HPK-K001" in refused.err


def test_the_schema_goes_where_it_is_asked(tmp_path: Path, hk: Hk) -> None:
    printed = hk("config", "schema")
    assert printed.code == 0 and json.loads(printed.out)["title"].startswith("hyperpod-kit")
    file = tmp_path / "schema.json"
    assert hk("config", "schema", "--out", str(file)).code == 0
    assert json.loads(file.read_text()) == json.loads(printed.out)
    assert hk("config", "schema", "--out", str(tmp_path / "no/such/dir.json")).code == 3


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@examples(100)
@given(value=st.dictionaries(st.sampled_from(["a", "no", "x y", "~", "1"]), VALUES, max_size=4))
def test_any_values_come_back_from_the_text(value: Any) -> None:
    assert yaml_text.parse_yaml(render_yaml_marking_defaults(value, set()))[0] == (value or None)


def test_keys_with_dots_stay_what_they_are() -> None:
    values = document()
    values["hyperpod_kit"]["cluster"]["tags"] = {"a.b[0]": "x"}
    reads: list[KeyRead] = []
    config, _ = decode_settings(values, ACCESS_POINTS, reads)
    assert decode_settings(build_effective_values(reads)[0], ACCESS_POINTS) == (config, [])
