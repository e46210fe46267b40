"""What a template is made of, in CloudFormation's words. That form is written by hand; terraform.py translates it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

Resource = Mapping[str, Any]
"""`Type`, `Properties` and, where they differ from the usual, `DependsOn` and `DeletionPolicy`."""


@dataclass(frozen=True)
class MultipleRule:
    """A parameter must be a multiple, of which number another one says. `steps`: value of `by` -> the number."""

    parameter: str
    by: str
    steps: Mapping[int, int]
    unit: str


@dataclass(frozen=True)
class TemplatePart:
    """Resources that stand or fall together.

    title: for a person; paths: the places in the configuration that ask for it; resources: by logical id; parameters:
    what who applies the template must or may say; rules: what these parameters must fulfil together; ids: place in the
    configuration -> the value that belongs there once it is made.
    """

    title: str
    paths: tuple[str, ...]
    resources: Mapping[str, Resource]
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ids: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[MultipleRule, ...] = ()


def resource(kind: str, properties: Mapping[str, Any], **more: Any) -> Resource:
    """Make one resource. `more`: DependsOn, DeletionPolicy, UpdateReplacePolicy."""
    return {"Type": kind, **more, "Properties": dict(properties)}


def ref(name: str) -> dict[str, str]:
    """Return a reference to the id of another resource, or to a parameter (Ref)."""
    return {"Ref": name}


def get_att(attribute: str, logical_id: str) -> dict[str, list[str]]:
    """Return a reference to another attribute of a resource (Fn::GetAtt)."""
    return {"Fn::GetAtt": [logical_id, attribute]}


def name_tags(name: str) -> list[dict[str, str]]:
    """Return the tags that give a resource its name in the console."""
    return [{"Key": "Name", "Value": name}]


KEPT = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
"""For what holds data: it outlives the stack."""


def logical_id_part(name: str) -> str:
    """Convert a name of the configuration to a part of a logical id, which takes letters and digits only."""
    return "".join(part[:1].upper() + part[1:] for part in "".join(c if c.isalnum() else " " for c in name).split())
