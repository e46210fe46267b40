"""The JSON Schema says what the decoder does: no more, no less, whatever stands in the file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.aws import request_shape
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.fields.fields import FIELDS
from hyperpod_kit.config.load import check
from hyperpod_kit.config.schema import build_schema
from hyperpod_kit.model.mounts.kinds import KINDS
from tests.property.every_field import document
from tests.support.examples import examples

ROOT = Path(__file__).parents[3]
EXAMPLE = json.loads((ROOT / "provisioning_parameters.example.json").read_text())
CLUSTER = {
    "node_provisioning_mode": "Continuous",
    "slurm_config_strategy": None,
    "accounting_database": {
        "endpoint": "db.example.com",
        "secret_arn": "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3",
    },
    "tiered_storage": {"mode": "Enable", "memory_percent": 20},
    "api": {"ClusterRole": "arn:aws:iam::111122223333:role/Scaling"},
}
STRICT = jsonschema.Draft202012Validator(build_schema())
SHAPE = jsonschema.Draft202012Validator(build_schema(limits=False))


def with_everything() -> dict[str, Any]:
    values = document()
    values["hyperpod_kit"]["cluster"].update(copy.deepcopy(CLUSTER))
    values["hyperpod_kit"]["cluster"]["instance_groups"][2].update(
        {"capacity": "Spot", "network_interface": "efa-only", "instance_types": ["ml.p5.48xlarge", "ml.p5e.48xlarge"],
         "auto_patch": {"strategy": "WhenIdle", "next_patch_date": "2026-12-01T03:00:00Z", "idle_wait_seconds": 3600,
                        "rollout": {"batch": "2", "rollback_batch": "10%", "pause_seconds": 60, "alarms": ["a"]}},
         "scheduled_update": {"schedule": "cron(0 3 ? * SUN *)", "rollout": {"batch": "50%"}},
         "ebs_gib": 500, "min_count": 1, "threads_per_core": 1, "deep_health_checks": ["InstanceStress"],
         "vpc": {"security_group_ids": ["sg-0123456789abcdef0"], "subnet_ids": ["subnet-0123456789abcdef0"]}}
    )  # fmt: skip
    return values


def places(value: Any, key_path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [key_path, *[place for key, item in inner for place in places(item, (*key_path, key))]]


def properties(node: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Every property of the schema by its path; mounts by kind."""
    found = {}
    for name, inner in node.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        found[place] = inner
        items = inner.get("items", {})
        found |= properties(inner, place) | properties(items, f"{place}[]")
        for one in items.get("oneOf", ()):
            found |= properties(one, f"{place}[{one['title']}]")
    return found


def test_it_is_a_schema_and_what_is_valid_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(build_schema())
    for values in (EXAMPLE, with_everything(), *[json.loads(path.read_text()) for path in configurations()]):
        assert list(STRICT.iter_errors(values)) == []
        assert decode_settings(values)[1] == []


def configurations() -> list[Path]:
    """Every configuration that we ship."""
    return [path for path in sorted(ROOT.glob("examples/**/*.json")) if '"controller_group"' in path.read_text()]


def test_every_key_of_the_decoder_has_its_sentence_and_every_sentence_a_key() -> None:
    found = properties(build_schema())
    assert all(node["description"].endswith((".", "…")) and len(node["description"]) > 8 for node in found.values())
    told = set()
    for place in found:
        kind = next((kind for kind in KINDS if place.startswith(f"hyperpod_kit.mounts[{kind}].")), "")
        common = place.replace(f"mounts[{kind}]", "mounts[]", 1)
        told.add(place if place in FIELDS else common)
    assert told == set(FIELDS)
    for field in FIELDS.values():
        if field.request:
            assert request_shape.field_constraints("sagemaker", "CreateCluster", field.request), field.request


def test_limits_are_the_installed_models() -> None:
    found = properties(build_schema())
    types = found["hyperpod_kit.cluster.instance_groups[].instance_type"]["enum"]
    assert "ml.p5.48xlarge" in types and len(types) > 50
    count = found["hyperpod_kit.cluster.instance_groups[].count"]
    assert (count["minimum"], count["maximum"]) == (0, 6758)
    mode = found["hyperpod_kit.cluster.lifecycle_mode"]
    assert mode["default"] == "on_init_complete" and set(mode["enum"]) == {
        "on_init_complete",
        "on_create",
        "ami_only",
        None,
    }
    assert found["hyperpod_kit.mounts[efs].kind"]["const"] == "efs"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "a_b"}, ["hyperpod_kit", "cluster", "name"]),
        ({"lifecycle_mode": "on-create"}, ["hyperpod_kit", "cluster", "lifecycle_mode"]),
        ({"node_recovery": "automatic"}, ["hyperpod_kit", "cluster", "node_recovery"]),
        ({"regoin": "x"}, ["hyperpod_kit", "cluster"]),
    ],
)
def test_an_editor_marks_the_value(change: dict[str, Any], path: list[Any]) -> None:
    values = copy.deepcopy(EXAMPLE)
    values["hyperpod_kit"]["cluster"].update(change)
    assert [list(error.path) for error in STRICT.iter_errors(values)] == [path]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.just(1.5) | st.text(max_size=3) | st.sampled_from(list(KINDS)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "x"]), inner, max_size=2),
    max_leaves=3,
)


@examples(50)
@given(data=st.data())
def test_schema_and_decoder_refuse_the_same_files(data: st.DataObject) -> None:
    """Anything in the place of any value, any key gone, or a key too many."""
    values = with_everything()
    key_path = data.draw(st.sampled_from([place for place in places(values) if place]))
    inner = values
    for key in key_path[:-1]:
        inner = inner[key]
    what = data.draw(st.sampled_from(["replace", "remove", "add"]))
    if what == "remove":
        del inner[key_path[-1]]
    elif what == "add" and isinstance(inner, dict):
        inner["of tomorrow"] = data.draw(JSON)
    else:
        inner[key_path[-1]] = data.draw(JSON)
    shape = [
        finding
        for finding in decode_settings(values)[1]
        if finding.code in ("HPK-C001", "HPK-C002", "HPK-C003", "HPK-C005")
    ]
    assert bool(list(SHAPE.iter_errors(values))) == bool(shape), (key_path, shape)


def test_what_the_strict_schema_refuses_validate_refuses_too(tmp_path: Path) -> None:
    """Its limits are never stricter than the rules: an editor does not mark what `validate` takes."""
    path = tmp_path / "c.json"
    for key_path in places(EXAMPLE)[1:]:
        for value in ("x y", -1, "a" * 70):
            values = copy.deepcopy(EXAMPLE)
            inner = values
            for key in key_path[:-1]:
                inner = inner[key]
            inner[key_path[-1]] = value
            if not STRICT.is_valid(values):
                path.write_text(json.dumps(values))
                assert any(finding.severity == "error" for finding in check(path).findings), (key_path, value)
