"""The same in Terraform's JSON syntax (`main.tf.json`): each resource translated from the one form of template.py.

Names of arguments are mostly CloudFormation's in snake case; what differs stands in a table, and where one resource
becomes several there is a function. Attributes that other resources ask for are in ATTRIBUTES.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from hyperpod_kit.infra.part import Resource, TemplatePart
from hyperpod_kit.infra.terraform_types import ATTRIBUTES, TYPES

PSEUDO = {
    "AWS::AccountId": "data.aws_caller_identity.current.account_id",
    "AWS::Partition": "data.aws_partition.current.partition",
}
_REFERENCE = re.compile(r"\$\{([A-Za-z0-9:.]+)\}")


def terraform_configuration(region: str, parts: list[TemplatePart]) -> dict[str, Any]:
    """Return the Terraform configuration of the parts as JSON values, for `region`."""
    resources = {name: value for part in parts for name, value in part.resources.items()}
    parameters = {name: value for part in parts for name, value in part.parameters.items()}
    expressions = _Expressions(region, resources, set(parameters))
    made: dict[str, dict[str, Any]] = {}
    for name, given in resources.items():
        kind = given["Type"]
        for tf in TYPES[kind](
            _to_snake_case(name), expressions.with_expressions(given["Properties"], policies_as_json=True)
        ):
            arguments = dict(tf.arguments)
            if given.get("DeletionPolicy") == "Retain" and tf.first:
                arguments["lifecycle"] = {"prevent_destroy": True}
            if "DependsOn" in given:
                arguments["depends_on"] = [expressions.terraform_address(given["DependsOn"])]
            made.setdefault(tf.kind, {})[tf.label] = arguments
    ids = {path: value for part in parts for path, value in part.ids.items()}
    return {
        "terraform": {
            "required_version": ">= 1.5",
            "required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 6.0"}},
        },
        "provider": {"aws": {"region": region}},
        "data": {"aws_caller_identity": {"current": {}}, "aws_partition": {"current": {}}},
        "variable": {_to_snake_case(name): _variable_from_parameter(value) for name, value in parameters.items()},
        "resource": made,
        "output": {
            f"value_{number}": {"description": path, "value": expressions.with_expressions(value)}
            for number, (path, value) in enumerate(ids.items(), 1)
        },
    }


class _Expressions:
    """Turns CloudFormation's references into Terraform's expressions."""

    def __init__(self, region: str, resources: Mapping[str, Resource], parameters: set[str]) -> None:
        self._region = region
        self._resources = resources
        self._parameters = parameters

    def terraform_address(self, name: str) -> str:
        """Return the address of a resource, `aws_vpc.vpc`."""
        of = self._resources[name]
        return f"{TYPES[of['Type']](_to_snake_case(name), of['Properties'])[0].kind}.{_to_snake_case(name)}"

    def with_expressions(self, value: Any, *, policies_as_json: bool = False) -> Any:
        """Return the value with every reference as `${...}`; `policies`: policy documents become their JSON text."""
        if isinstance(value, Mapping):
            if set(value) == {"Ref"}:
                return f"${{{self._reference_expression(value['Ref'], 'Ref')}}}"
            if set(value) == {"Fn::GetAtt"}:
                name, attribute = value["Fn::GetAtt"]
                return f"${{{self._reference_expression(name, attribute)}}}"
            if set(value) == {"Fn::Sub"}:
                return _REFERENCE.sub(lambda match: self._interpolate(match[1]), value["Fn::Sub"])
            if policies_as_json and "Statement" in value and "Version" in value:
                return json.dumps(self.with_expressions(value))
            return {key: self.with_expressions(item, policies_as_json=policies_as_json) for key, item in value.items()}
        if isinstance(value, list):
            return [self.with_expressions(item, policies_as_json=policies_as_json) for item in value]
        if isinstance(value, str):
            return value.replace("${", "$${")
        return value

    def _interpolate(self, name: str) -> str:
        """Return the Terraform expression of a reference within an Fn::Sub text."""
        if name == "AWS::Region":
            return self._region
        return f"${{{self._reference_expression(name, 'Ref')}}}"

    def _reference_expression(self, name: str, attribute: str) -> str:
        if name in PSEUDO:
            return PSEUDO[name]
        if name in self._parameters:
            return f"var.{_to_snake_case(name)}"
        return f"{self.terraform_address(name)}.{ATTRIBUTES.get((self._resources[name]['Type'], attribute), 'id')}"


def _variable_from_parameter(parameter: Mapping[str, Any]) -> dict[str, Any]:
    number = parameter["Type"] == "Number"
    kind = "string"
    if number:
        kind = "number"
    made: dict[str, Any] = {"type": kind, "description": parameter["Description"]}
    if "Default" in parameter:
        made["default"] = parameter["Default"]
    return made


def _to_snake_case(name: str) -> str:
    """Convert `NodesFromStorage988` to `nodes_from_storage988`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
