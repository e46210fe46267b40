"""docs/reference/permissions.md has the action of every call that an admin's commands make of AWS, and no other."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Iterator, Set

from botocore import xform_name

from hyperpod_kit.aws.shapes import service_model
from hyperpod_kit.config.load import load
from hyperpod_kit.preflight.admin_policy import admin_policy

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/permissions.md"

PREFIXES = {"efs": "elasticfilesystem", "service-quotas": "servicequotas"}
"""Service of boto3 -> how IAM names it, where the two differ."""

S3_ACTIONS = {
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListObjectVersions": "ListBucketVersions",
    "ListObjectsV2": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListParts": "ListMultipartUploadParts",
}
"""Calls of S3 whose action has another name."""

WITHOUT_CALL = {
    "iam:PassRole",  # CreateCluster and UpdateCluster name the nodes' role
    "sagemaker:AddTags",  # CreateCluster with tags
    "elasticfilesystem:TagResource",  # CreateAccessPoint with tags
}
"""Actions that IAM asks for because of what a request contains."""

NEEDS_NO_PERMISSION = {"sts:GetCallerIdentity"}
ACTION = re.compile(r"`([a-z0-9]+:[A-Z][A-Za-z0-9]+)`")


def called_actions() -> Set[str]:
    """The actions of every call of a client that hyperpod_kit/aws/session.py makes."""
    return {action for source in (ROOT / "hyperpod_kit").rglob("*.py") for action in actions_of_module(source)}


def actions_of_module(source: Path) -> Iterator[str]:
    text = source.read_text(encoding="utf-8")
    if "aws.session import client" not in text:
        return
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for service in services_opened(nodes):
        for operation in service_model(service).operation_names:
            if xform_name(operation) in names:
                yield action_of_call(service, operation)


def services_opened(nodes: list[ast.AST]) -> Iterator[str]:
    """The services of the calls `client("SERVICE", …)`."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "client":
            service = node.args[0]
            assert isinstance(service, ast.Constant), ast.dump(node)
            yield str(service.value)


def action_of_call(service: str, operation: str) -> str:
    if service == "s3":
        operation = S3_ACTIONS.get(operation, operation)
    return f"{PREFIXES.get(service, service)}:{operation}"


def section(heading: str) -> str:
    """The text below a heading of the page's second level, without its JSON."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.sub(r"```json\n.*?```", "", text, flags=re.DOTALL)


def test_every_call_has_its_action_on_the_page_and_no_other_is_there() -> None:
    called = called_actions()
    assert len(called) > 50
    rows = "".join(line for line in section("The admin's own permissions").splitlines() if line.startswith("|"))
    written = set(ACTION.findall(rows))
    assert written == called - NEEDS_NO_PERMISSION | WITHOUT_CALL


def test_the_policy_has_only_actions_of_the_tables() -> None:
    (policy,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    statements = json.loads(policy)["Statement"]
    actions = {action for entry in statements for action in as_list(entry["Action"])}
    written = set(ACTION.findall(section("The admin's own permissions")))
    assert actions <= written
    of_clusters = {action for action in written if action.startswith("sagemaker:")}
    assert of_clusters <= actions


def test_the_policy_is_what_the_command_prints_of_the_example() -> None:
    (policy,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert json.loads(policy) == admin_policy(load(ROOT / "provisioning_parameters.example.json"))


def as_list(value: str | list[str]) -> list[str]:
    if isinstance(value, str):
        return [value]
    return value
