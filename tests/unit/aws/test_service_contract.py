"""Every operation and field of the cluster API has a row in the service contract; what is new fails by its name."""

from __future__ import annotations

import copy
import gzip
import json
import re
from pathlib import Path
from typing import Any, Callable

import botocore
import click
import pytest
from botocore.model import ServiceModel

from hyperpod_kit.aws.service_contract import OPERATIONS, names_not_in_model, unjudged_names
from hyperpod_kit.aws.verdicts import FieldVerdict, Judgement, Operation
from hyperpod_kit.cli.table import cli
from hyperpod_kit.cli.views import finding_texts
from hyperpod_kit.config.fields.fields import FIELDS
from hyperpod_kit.config.schema import build_schema
from hyperpod_kit.config.settings.findings import is_key_path_at_or_inside

DATA = Path(botocore.__file__).parent / "data/sagemaker/2017-07-24/service-2.json.gz"
MODEL: dict[str, Any] = json.loads(gzip.decompress(DATA.read_bytes()))
Doctor = Callable[[dict[str, Any]], object]


def doctored(change: Doctor) -> ServiceModel:
    model = copy.deepcopy(MODEL)
    change(model)
    return ServiceModel(model, "sagemaker")


def add_field(shape: str, name: str, of: str = "String") -> Doctor:
    return lambda model: model["shapes"][shape]["members"].update({name: {"shape": of}})


def add_operation(name: str) -> Doctor:
    return lambda model: model["operations"].update({name: {**model["operations"]["DeleteCluster"], "name": name}})


def test_the_table_has_every_name_of_the_installed_model_and_no_other() -> None:
    model = ServiceModel(MODEL, "sagemaker")
    assert unjudged_names(model) == [], "give each of these a row in hyperpod_kit/aws/service_contract.py"
    assert names_not_in_model(model) == [], "the service has them no more"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (
            add_field("ClusterInstanceGroupSpecification", "OfTomorrow"),
            ["CreateCluster request InstanceGroups[].OfTomorrow", "UpdateCluster request InstanceGroups[].OfTomorrow"],
        ),
        # Deep inside, and a structure: by the fields that it has.
        (
            add_field("ClusterDrainPolicy", "Window", "ClusterPatchSchedule"),
            [
                "CreateCluster request InstanceGroups[].AutoPatchConfig.DrainPolicy.Window.NextPatchDate",
                "DescribeCluster response InstanceGroups[].AutoPatchConfig.DrainPolicy.Window.NextPatchDate",
                "UpdateCluster request InstanceGroups[].AutoPatchConfig.DrainPolicy.Window.NextPatchDate",
            ],
        ),
        # What is refused as a whole has a row for each of its fields as well.
        (
            add_field("ClusterKubernetesTaint", "Until"),
            [
                "CreateCluster request InstanceGroups[].KubernetesConfig.Taints[].Until",
                "DescribeCluster response InstanceGroups[].KubernetesConfig.CurrentTaints[].Until",
                "DescribeCluster response InstanceGroups[].KubernetesConfig.DesiredTaints[].Until",
                "DescribeClusterNode response NodeDetails.KubernetesConfig.CurrentTaints[].Until",
                "DescribeClusterNode response NodeDetails.KubernetesConfig.DesiredTaints[].Until",
                "UpdateCluster request InstanceGroups[].KubernetesConfig.Taints[].Until",
            ],
        ),
        (add_operation("MoveCluster"), ["MoveCluster"]),
    ],
)
def test_what_a_newer_model_brings_is_named(change: Doctor, names: list[str]) -> None:
    assert unjudged_names(doctored(change)) == names


def test_what_a_model_has_no_more_is_named() -> None:
    def remove(model: dict[str, Any]) -> None:
        del model["shapes"]["ClusterInstanceGroupDetails"]["members"]["SoftwareUpdateStatus"]
        del model["operations"]["StartClusterHealthCheck"]

    gone = names_not_in_model(doctored(remove))
    assert "DescribeCluster response InstanceGroups[].SoftwareUpdateStatus" in gone
    assert "StartClusterHealthCheck" in gone


def rows() -> list[tuple[str, Judgement]]:
    return [(name, row) for name, operation in OPERATIONS.items() for row in (*operation.request, *operation.response)]


def rows_and_operation(operation: Operation) -> list[Operation | Judgement]:
    return [operation, *operation.request, *operation.response]


def test_no_field_has_two_rows() -> None:
    for name, operation in OPERATIONS.items():
        for side in (operation.request, operation.response):
            fields = [field for row in side for field in row.fields]
            assert len(fields) == len(set(fields)), name


def test_a_configured_field_has_a_key_and_its_request_is_that_field() -> None:
    keys = {path for path in FIELDS if not path.startswith("hyperpod_kit.mounts[].")} | {"hyperpod_kit.mounts[]"}
    judged = {field for row in OPERATIONS["CreateCluster"].request for field in row.fields}
    properties = json.dumps(build_schema(limits=False))
    configured = [row for _, row in rows() if row.verdict is FieldVerdict.CONFIGURED]
    assert len(configured) > 60
    for row in configured:
        key = row.source
        assert key in keys or key == "hyperpod_kit.mounts[]", key
        assert f'"{key.split(".")[-1].removesuffix("[]")}"' in properties
        request = None
        if key in FIELDS:
            request = FIELDS[key].request
        if request is not None:
            assert any(is_key_path_at_or_inside(field, request) for field in judged), (key, request)


def test_what_is_passed_through_or_refused_has_its_finding() -> None:
    for name, row in rows():
        if row.verdict in (FieldVerdict.PASSED_THROUGH, FieldVerdict.REFUSED):
            assert finding_texts.texts_of(row.source), (name, row)


def test_commands_of_the_table_exist() -> None:
    known = set(cli.list_commands(click.Context(cli)))
    for name, operation in OPERATIONS.items():
        for row in rows_and_operation(operation):
            if (
                row.verdict not in (FieldVerdict.CALLED, FieldVerdict.READ, FieldVerdict.ARGUMENT)
                or row.source == "all that list"
            ):
                continue
            for source in row.source.split(", "):
                command = re.match(r"[a-z-]+", source)
                assert command and (command.group() in known or command.group().startswith("--")), (name, row.source)


def test_every_row_says_what_the_field_does() -> None:
    for name, operation in OPERATIONS.items():
        for row in rows_and_operation(operation):
            assert row.effect, name
