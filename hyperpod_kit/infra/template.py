"""All parts of a configuration, and the CloudFormation template that they make."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import UsageError
from hyperpod_kit.infra.part import MultipleRule, TemplatePart, ref
from hyperpod_kit.infra.resources import buckets, efs, fsx, roles
from hyperpod_kit.infra.resources.groups import security_groups_part
from hyperpod_kit.infra.resources.network import network_part
from hyperpod_kit.preflight.aws_facts import fsx as fsx_queries
from hyperpod_kit.preflight.mounts import shared_file_systems as shared
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_kit.preflight.placement import network_placements

_SHARED: dict[str, Callable[..., TemplatePart]] = {"efs": efs.file_system_part}
"""Services of shared file systems, by aws's word, that a template can make."""


def build_template_parts(settings: Settings) -> list[TemplatePart]:
    """Return the parts for everything that the configuration names and AWS must have. Raises UsageError."""
    if not network_placements(settings):
        raise UsageError(
            "the configuration has no hyperpod_kit.cluster.vpc, so there is no network to create",
            hint='add "vpc" with one subnet id and one security group id; any will do, the template makes new ones',
        )
    template_parts = [network_part(settings), security_groups_part(settings)]
    made: dict[str, str] = {}
    for number, requested in enumerate(_shared_file_system_queries(settings), 1):
        template_parts.append(efs.file_system_part(settings, requested, number))
        made.update(efs.ids_with_logical_ids(settings, requested, number))
    region = settings.cluster.region
    systems = [requested for requested in fsx_queries.file_system_queries(settings) if requested.region == region]
    template_parts += [fsx.file_system_part(settings, requested, number) for number, requested in enumerate(systems, 1)]
    return [*template_parts, *buckets.bucket_parts(settings), *roles.role_parts(settings, made)]


def describe_omissions(settings: Settings) -> Iterator[str]:
    """Describe what the configuration names and a template does not make."""
    region = settings.cluster.region
    for kind, its in INQUIRIES.items():
        if its.shared is None:
            continue
        for requested in shared.file_system_queries(settings, kind):
            if its.shared.word not in _SHARED:
                yield (
                    f"{requested.id} ({its.shared.name}) is not in the template: the configuration does not "
                    "describe the storage behind it"
                )
            elif requested.region != region:
                yield f"{requested.id} is not in the template: it is in {requested.region}, the cluster in {region}"
    for system in fsx_queries.file_system_queries(settings):
        if system.region != region:
            yield f"{system.id} is not in the template: it is in {system.region}, the cluster in {region}"
    for secret in settings.secrets:
        yield f"secret {secret.name} is not in the template, which would reveal its value"


def cloudformation_template(settings: Settings, template_parts: Optional[list[TemplatePart]] = None) -> dict[str, Any]:
    """Return the template as JSON values. Outputs are described by the place in the configuration where they
    belong. Raises UsageError."""
    if template_parts is None:
        template_parts = build_template_parts(settings)
    rules = {name: rule for part in template_parts for item in part.rules for name, rule in _cloudformation_rules(item)}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Resources for the cluster {settings.cluster.name}, created by hyperpod-kit infra template.",
        "Parameters": {name: value for part in template_parts for name, value in part.parameters.items()},
        **({"Rules": rules} if rules else {}),
        "Resources": {name: value for part in template_parts for name, value in part.resources.items()},
        "Outputs": {
            f"Value{number}": {"Description": path, "Value": value}
            for number, (path, value) in enumerate(_values_by_config_path(template_parts).items(), 1)
        },
    }


MOST_MULTIPLES = 50
"""That a rule lists: CloudFormation cannot divide."""


def _cloudformation_rules(rule: MultipleRule) -> Iterator[tuple[str, dict[str, Any]]]:
    for value, step in rule.steps.items():
        multiples = [str(step * times) for times in range(1, MOST_MULTIPLES + 1)]
        yield (
            f"{rule.parameter}At{value}",
            {
                "RuleCondition": {"Fn::Equals": [ref(rule.by), str(value)]},
                "Assertions": [
                    {
                        "Assert": {"Fn::Contains": [multiples, ref(rule.parameter)]},
                        "AssertDescription": f"{rule.parameter} must be a multiple of {step} {rule.unit} where "
                        f"{rule.by} is {value}.",
                    }
                ],
            },
        )


def to_yaml_without_aliases(values: dict[str, Any]) -> str:
    """Return the template as YAML without aliases, which CloudFormation does not take."""
    import yaml

    class _NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return str(yaml.dump(values, Dumper=_NoAliases, sort_keys=False, width=120))


def _values_by_config_path(template_parts: list[TemplatePart]) -> dict[str, Any]:
    return {path: value for part in template_parts for path, value in part.ids.items()}


def _shared_file_system_queries(settings: Settings) -> list[shared.FileSystemQuery]:
    """List the shared file systems of the cluster's region that a template can make."""
    queries = []
    for kind, its in INQUIRIES.items():
        if its.shared is not None and its.shared.word in _SHARED:
            queries += shared.file_system_queries(settings, kind)
    return [query for query in queries if query.region == settings.cluster.region]
