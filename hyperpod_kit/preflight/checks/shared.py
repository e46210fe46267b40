"""EFS and S3 Files: they exist, each zone of the nodes has a mount target that lets them in, access points fit."""

from __future__ import annotations

from typing import Iterator, NamedTuple, Union

from hyperpod_kit.aws.policies import MOUNT, lets_in, open_statements
from hyperpod_kit.config.findings import WARNING, Finding
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.preflight.checks.endpoints import ports_text, to_endpoints
from hyperpod_kit.preflight.facts import UNKNOWN, AccountFacts, FileSystem, NotQueried, Subnet, known
from hyperpod_kit.preflight.placement import placements, roles
from hyperpod_kit.preflight.queries.client import region_of
from hyperpod_kit.preflight.queries.shared import FileSystemQuery, wanted

NFS = 2049
READY = ("available", "updating")


class FoundFileSystem(NamedTuple):
    """A file system that is there, as the configuration names it. `service`: aws's word for it."""

    want: FileSystemQuery
    system: FileSystem
    service: str


def there(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every file system exists and is ready."""
    for kind, answers, name, command in (
        (EfsMount, facts.efs, "EFS", "aws efs describe-file-systems"),
        (S3FilesMount, facts.s3files, "S3 Files", "aws s3files list-file-systems"),
    ):
        for want in wanted(settings, kind):
            system = answers.get((want.region, want.id), UNKNOWN)
            if system is None:
                yield Finding(
                    "HPK-V401",
                    want.path,
                    f"there is no {name} file system `{want.id}` in {want.region}",
                    f"{command} --region {want.region} lists them",
                )
            elif isinstance(system, FileSystem) and system.state.lower() not in READY:
                yield Finding(
                    "HPK-V402",
                    want.path,
                    f"{want.id} is {system.state.lower()}",
                    "Wait until it is available, then again",
                )


def targets(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Each zone of the nodes has a mount target in their VPC: the file system's name resolves in no other zone."""
    for found in _systems(settings, facts):
        endpoints, subnets = known(found.system.endpoints), _subnets(settings, facts, found)
        if endpoints is None or not subnets or found.want.region != settings.cluster.region:
            continue
        vpcs, names = {subnet.vpc_id for subnet in subnets}, {subnet.zone: subnet.zone_name for subnet in subnets}
        ours = [endpoint for endpoint in endpoints if endpoint.vpc_id in vpcs]
        if endpoints and not ours:
            others = ", ".join(sorted({endpoint.vpc_id for endpoint in endpoints}))
            yield Finding(
                "HPK-V404",
                found.want.path,
                f"the mount targets of {found.want.id} are in {others}, the nodes are in {', '.join(sorted(vpcs))}",
                "Use a file system of the nodes' VPC, or make its mount targets there",
            )
            continue
        missing = sorted(set(names) - {endpoint.zone for endpoint in ours if endpoint.ready})
        if missing:
            one_zone = f", a One Zone file system of {found.system.zone}," if found.system.zone else ""
            yield Finding(
                "HPK-V403",
                found.want.path,
                f"{found.want.id}{one_zone} has no available mount target in "
                f"{', '.join(f'{names[zone]} ({zone})' for zone in missing)}, where nodes would be",
                "Use subnets in its zone only"
                if found.system.zone
                else f"aws {found.service} create-mount-target for a subnet of each of these zones",
            )


def port(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Security groups let NFS through, out of the nodes and into the mount targets of their zones."""
    for found in _systems(settings, facts):
        places = {(subnet.vpc_id, subnet.zone) for subnet in _subnets(settings, facts, found)}
        near = [
            endpoint for endpoint in known(found.system.endpoints) or () if (endpoint.vpc_id, endpoint.zone) in places
        ]
        for shut in to_endpoints(settings, facts, found.want.mounts, near, (NFS,)):
            group = shut.groups[0] if shut.groups else "the mount target's security group"
            yield Finding(
                "HPK-V405",
                found.want.path,
                f"TCP {ports_text(shut.ports)} is shut: {shut.where}",
                f"Allow it in {group}",
            )


def access_points(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Every access point exists, is ready and belongs to the file system that is mounted through it."""
    for mount, place in settings.written_mounts:
        if not isinstance(mount, (EfsMount, S3FilesMount)) or mount.access_point_id is None:
            continue
        system = _system(settings, facts, mount)
        if system is None:
            continue
        if mount.access_point_id not in system.points:
            continue
        answer = system.points[mount.access_point_id]
        at = place if place.endswith(".homes") else f"{place}.access_point_id"
        if answer is None:
            yield Finding(
                "HPK-V406",
                at,
                f"there is no access point `{mount.access_point_id}`",
                "hyperpod-kit users apply makes those of homes; others: aws efs describe-access-points",
            )
        elif isinstance(answer, NotQueried):
            continue
        elif answer.file_system_id != mount.file_system_id:
            yield Finding(
                "HPK-V407",
                at,
                f"access point `{mount.access_point_id}` belongs to {answer.file_system_id}, not to "
                f"{mount.file_system_id}",
                "Name the file system that it belongs to, or another access point",
            )
        elif not answer.ready:
            yield Finding(
                "HPK-V408", at, f"access point `{mount.access_point_id}` is not available", "Wait, or make another one"
            )


def policy(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A file system with a policy lets these mounts in: homes by the nodes' role, those without IAM as anybody."""
    for mount, place in settings.written_mounts:
        system = _system(settings, facts, mount) if isinstance(mount, EfsMount) else None
        said = known(system.policy) if system else None
        if said is None or not isinstance(mount, EfsMount):
            continue
        if mount.owner is not None:
            for role in roles(settings):
                if any(mount.carried_by(group.role, group.name) for group in role.groups) and not lets_in(
                    said, role.arn, MOUNT
                ):
                    yield Finding(
                        "HPK-V410",
                        role.path,
                        f"the policy of {mount.file_system_id} does not let {role.arn} mount homes",
                        "hyperpod-kit users apply puts a policy that lets the cluster's role in",
                    )
        elif not mount.iam and not open_statements(said):
            let_in = any(lets_in(said, role.arn, MOUNT) for role in roles(settings))
            yield Finding(
                "HPK-V409",
                f"{place}.iam",
                f"the policy of {mount.file_system_id} lets nobody in without IAM, and the mount does without",
                "Set iam to true" + ("" if let_in else ", and let the role in"),
            )


def closed(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Not everybody in the network is root of a file system: its policy asks clients for IAM."""
    seen = set()
    for mount, place in settings.written_mounts:
        system = _system(settings, facts, mount) if isinstance(mount, EfsMount) else None
        if system is None or isinstance(system.policy, NotQueried) or system.id in seen:
            continue
        seen.add(system.id)
        open_to_all = open_statements(system.policy)
        if system.policy is not None and not open_to_all:
            continue
        why = f"its policy lets everybody in ({open_to_all[0]})" if open_to_all else "it has no policy"
        yield Finding(
            "HPK-V411",
            f"{place}.file_system_id" if getattr(mount, "owner", None) is None else place,
            f"{system.id}: {why}: who reaches it over the network mounts it, as anybody he says he is, root included",
            "Give it a policy that lets only the nodes' role in (ClientMount, ClientWrite), and set iam to true",
            WARNING,
        )


def _systems(settings: Settings, facts: AccountFacts) -> Iterator[FoundFileSystem]:
    for kind, answers, service in ((EfsMount, facts.efs, "efs"), (S3FilesMount, facts.s3files, "s3files")):
        for want in wanted(settings, kind):
            system = known(answers.get((want.region, want.id)))
            if system is not None:
                yield FoundFileSystem(want, system, service)


def _system(settings: Settings, facts: AccountFacts, mount: Union[EfsMount, S3FilesMount]) -> Union[FileSystem, None]:
    answers = facts.efs if isinstance(mount, EfsMount) else facts.s3files
    return known(answers.get((region_of(mount.region, settings.cluster.region), mount.file_system_id)))


def _subnets(settings: Settings, facts: AccountFacts, found: FoundFileSystem) -> list[Subnet]:
    """The subnets of the nodes that carry a mount of the file system."""
    ids = {
        name
        for placement in placements(settings)
        if placement.carries(found.want.mounts)
        for name in placement.vpc.subnet_ids
    }
    subnets = known(facts.network.subnets) if facts.network else None
    return [subnet for subnet in subnets or () if subnet.id in ids]
