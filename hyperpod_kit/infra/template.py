"""All parts of a configuration, and the CloudFormation template that they make."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

from hyperpod_kit.config.settings import Settings
from hyperpod_kit.errors import UsageError
from hyperpod_kit.infra import buckets, efs, fsx, roles
from hyperpod_kit.infra.groups import groups
from hyperpod_kit.infra.network import network
from hyperpod_kit.infra.part import TemplatePart
from hyperpod_kit.preflight.aws_facts import fsx as fsx_queries
from hyperpod_kit.preflight.aws_facts import shared
from hyperpod_kit.preflight.mounts.registry import INQUIRIES
from hyperpod_kit.preflight.placement import placements

_SHARED: dict[str, Callable[..., TemplatePart]] = {"efs": efs.part}
"""Services of shared file systems, by aws's word, that a template can make."""


def parts(settings: Settings) -> list[TemplatePart]:
    """Everything that the configuration names and AWS must have. Raises UsageError."""
    if not placements(settings):
        raise UsageError(
            "the configuration has no hyperpod_kit.cluster.vpc: there is no network to make",
            hint='add "vpc" with one subnet id and one security group id; any will do, the template makes new ones',
        )
    found = [network(settings), groups(settings)]
    made: dict[str, str] = {}
    for number, want in enumerate(_shared(settings), 1):
        found.append(efs.part(settings, want, number))
        made.update(efs.replaced(settings, want, number))
    here = settings.cluster.region
    systems = [want for want in fsx_queries.file_system_queries(settings) if want.region == here]
    found += [fsx.part(settings, want, number) for number, want in enumerate(systems, 1)]
    return [*found, *buckets.parts(settings), *roles.parts(settings, made)]


def left_out(settings: Settings) -> Iterator[str]:
    """What the configuration names and a template does not make, in sentences."""
    here = settings.cluster.region
    for kind, its in INQUIRIES.items():
        if its.shared is None:
            continue
        for want in shared.file_system_queries(settings, kind):
            if its.shared.word not in _SHARED:
                yield f"{want.id} ({its.shared.name}) is not in it: the configuration does not say what is behind it"
            elif want.region != here:
                yield f"{want.id} is not in it: it is in {want.region}, the cluster in {here}"
    for system in fsx_queries.file_system_queries(settings):
        if system.region != here:
            yield f"{system.id} is not in it: it is in {system.region}, the cluster in {here}"
    for secret in settings.secrets:
        yield f"secret {secret.name} is not in it: its value would stand in the template"


def cloudformation(settings: Settings, found: Optional[list[TemplatePart]] = None) -> dict[str, Any]:
    """The template as JSON values. Outputs are named after what belongs into the configuration. Raises UsageError."""
    found = parts(settings) if found is None else found
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"What the cluster {settings.cluster.name} stands on, made by hyperpod-kit infra template.",
        "Parameters": {name: value for part in found for name, value in part.parameters.items()},
        "Resources": {name: value for part in found for name, value in part.resources.items()},
        "Outputs": {
            f"Value{number}": {"Description": place, "Value": value}
            for number, (place, value) in enumerate(_ids(found).items(), 1)
        },
    }


def as_yaml(values: dict[str, Any]) -> str:
    """The template as a person reads it, without YAML's aliases, which CloudFormation does not take."""
    import yaml

    class _NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return str(yaml.dump(values, Dumper=_NoAliases, sort_keys=False, width=120))


def _ids(found: list[TemplatePart]) -> dict[str, Any]:
    return {place: value for part in found for place, value in part.ids.items()}


def _shared(settings: Settings) -> list[shared.FileSystemQuery]:
    """The shared file systems of the cluster's region that a template can make."""
    return [
        want
        for kind, its in INQUIRIES.items()
        if its.shared is not None and its.shared.word in _SHARED
        for want in shared.file_system_queries(settings, kind)
        if want.region == settings.cluster.region
    ]
