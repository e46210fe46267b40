"""What a right account said, and small changes to it: what the tables of the checks are made of."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any, Callable, NamedTuple, cast

from hyperpod_kit.aws.buckets import BucketHead
from hyperpod_kit.aws.iam import Decision
from hyperpod_kit.aws.quotas import Quota
from hyperpod_kit.config.settings import homes
from hyperpod_kit.config.settings.settings import ListedPackage, Settings
from hyperpod_kit.config.settings.sourced import SourcedMount
from hyperpod_kit.model.clients import Package
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.preflight.facts import (
    AccountFacts,
    FileSystem,
    FsxFileSystem,
    InstanceType,
    NetworkFacts,
    NotQueried,
    Route,
)
from hyperpod_kit.preflight.reachability import SecurityRule
from hyperpod_kit.preflight.run import check
from tests.unit.preflight.world import REGION, ROLE


class Case(NamedTuple):
    """A configuration with what AWS said about it."""

    settings: Settings
    facts: AccountFacts

    def network(self, **changes: Any) -> Case:
        assert self.facts.network is not None
        return self.said(network=replace(self.facts.network, **changes))

    def said(self, **changes: Any) -> Case:
        return self._replace(facts=replace(self.facts, **changes))

    def wrote(self, **changes: Any) -> Case:
        return self._replace(settings=replace(self.settings, **changes))

    def mount(self, *mounts: Any) -> Case:
        """Further mounts, at hyperpod_kit.mounts[2] and on."""
        written = [SourcedMount(mount, f"hyperpod_kit.mounts[{2 + index}]") for index, mount in enumerate(mounts)]
        return self.wrote(sourced_mounts=(*self.settings.sourced_mounts, *written))

    def rules(self, index: int, *, ingress: Any = None, egress: Any = None) -> Case:
        """Other rules for the nodes' group (0) or the storage's (1)."""
        assert self.facts.network is not None
        name = [nodes_of(self), storage_of(self)][index]
        group = self.facts.network.security_group_if_known(name)
        assert group is not None
        new = replace(
            group,
            ingress=group.ingress if ingress is None else ingress,
            egress=group.egress if egress is None else egress,
        )
        return self.network(groups={**self.facts.network.groups, name: new})


def nodes_of(case: Case) -> str:
    assert case.settings.cluster.vpc is not None
    return case.settings.cluster.vpc.security_group_ids[0]


def storage_of(case: Case) -> str:
    (system,) = case.facts.fsx.values()
    assert isinstance(system, FsxFileSystem) and not isinstance(system.endpoints, NotQueried)
    groups = system.endpoints[0].groups
    assert not isinstance(groups, NotQueried)
    return groups[0]


def efs(case: Case, **changes: Any) -> Case:
    """Other facts about the one EFS file system."""
    ((key, system),) = case.facts.file_systems["efs"].items()
    assert isinstance(system, FileSystem)
    return case.said(file_systems={"efs": {key: replace(system, **changes)}})


def endpoint(case: Case, **changes: Any) -> Case:
    """Other facts about its one mount target."""
    (system,) = case.facts.file_systems["efs"].values()
    assert isinstance(system, FileSystem) and not isinstance(system.endpoints, NotQueried)
    return efs(case, endpoints=(replace(system.endpoints[0], **changes),))


def fsx(case: Case, **changes: Any) -> Case:
    """Other facts about the one FSx file system."""
    ((key, system),) = case.facts.fsx.items()
    assert isinstance(system, FsxFileSystem)
    return case.said(fsx={key: replace(system, **changes)})


def fsx_endpoint(case: Case, **changes: Any) -> Case:
    (system,) = case.facts.fsx.values()
    assert isinstance(system, FsxFileSystem) and not isinstance(system.endpoints, NotQueried)
    return fsx(case, endpoints=(replace(system.endpoints[0], **changes),))


def subnet(case: Case, **changes: Any) -> Case:
    assert case.facts.network is not None and not isinstance(case.facts.network.subnets, NotQueried)
    return case.network(subnets=(replace(case.facts.network.subnets[0], **changes),))


def routes(case: Case, *routes: Route) -> Case:
    """Other routes of the subnet's own table."""
    assert case.facts.network is not None and not isinstance(case.facts.network.tables, NotQueried)
    return case.network(
        tables=tuple(replace(table, routes=routes) if table.subnets else table for table in case.facts.network.tables)
    )


def bucket(case: Case, name: str, looked: BucketHead) -> Case:
    return case.said(buckets={**case.facts.buckets, name: looked})


def quota(case: Case, name: str, value: float) -> Case:
    assert not isinstance(case.facts.quotas, NotQueried)
    return case.said(quotas={**case.facts.quotas, name: Quota(name, "L-1", value)})


def lustre(case: Case, **changes: Any) -> Case:
    """The Lustre mount of the short form, changed."""
    return _changed(case, lambda mount: mount.kind == "lustre", changes)


def as_home(case: Case) -> Case:
    """The EFS mount at hyperpod_kit.mounts[0], as `homes` would have made it."""
    written = case.settings.sourced_mounts
    return case.wrote(
        sourced_mounts=tuple(
            one
            if one.mount.name != "home"
            else SourcedMount(replace(cast(Any, one.mount), owner="trainer"), homes.HOMES_PATH)
            for one in written
        )
    )


def first_mount(case: Case, **changes: Any) -> Case:
    """The EFS mount at hyperpod_kit.mounts[0], changed."""
    return _changed(case, lambda mount: mount.name == "home", changes)


def _changed(case: Case, which: Callable[[Any], bool], changes: dict[str, Any]) -> Case:
    written = case.settings.sourced_mounts
    return case.wrote(
        sourced_mounts=tuple(
            one._replace(mount=replace(cast(Any, one.mount), **changes)) if which(one.mount) else one for one in written
        )
    )


def refused(case: Case, sid: str, action: str, decision: str = "implicitDeny", limits: tuple[str, ...] = ()) -> Case:
    one = Decision(action, "arn:aws:x", decision, limits)
    return case.said(decisions={**case.facts.decisions, (ROLE, sid): (one,)})


def zfs(case: Case, *, volumes: tuple[str, ...] = ("/fsx", "/fsx/data")) -> Case:
    """An OpenZFS mount of /fsx/data beside the rest, behind the same interfaces as the Lustre."""
    dns = f"fs-0bbbbbbbbbbbbbbbb.fsx.{REGION}.amazonaws.com"
    (lustre,) = case.facts.fsx.values()
    assert isinstance(lustre, FsxFileSystem)
    there = replace(lustre, id="fs-0bbbbbbbbbbbbbbbb", kind="OPENZFS", dns_name="", mount_name="", volumes=volumes)
    return case.mount(OpenZfsMount("zfs", "/zfs", dns, "/fsx/data")).said(
        fsx={**case.facts.fsx, (REGION, there.id): there}
    )


def s3files(case: Case) -> Case:
    return case.mount(S3FilesMount("files", "/files", "fs-0cccccccccccccccc")).said(
        file_systems={**case.facts.file_systems, "s3files": {(REGION, "fs-0cccccccccccccccc"): None}}
    )


def policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Statement": [{"Action": "elasticfilesystem:ClientMount", "Effect": "Allow", **one} for one in statements]}


Cases = dict[str, tuple[Callable[[Case], Case], list[tuple[str, str, str]]]]
"""Name -> a change, and (code, severity, path) of what follows."""

SECRET = Secret("db", f"arn:aws:secretsmanager:{REGION}:123456789012:secret:db-a1b2c3")
PACKAGE = ListedPackage(
    Package("mount-s3", "mount-s3", "1.22.0", "x86_64", "a" * 64, url="https://example.com/mount-s3.deb")
)
LOCAL = Route("10.0.0.0/16", "local", True)
ANYWHERE = (IPv4Network("0.0.0.0/0"),)
TO_ALL = SecurityRule("-1", None, frozenset(), ANYWHERE)
V = "hyperpod_kit.cluster.vpc"
SUBNET, GROUPS, ROLE_AT = f"{V}.subnet_ids[0]", f"{V}.security_group_ids", "hyperpod_kit.cluster.execution_role"
M0, M1, TYPES = "hyperpod_kit.mounts[0]", "hyperpod_kit.mounts[1]", "hyperpod_kit.cluster.instance_groups"
DEMO, DATA = "sagemaker-hyperpod-kit-demo", "sagemaker-hyperpod-kit-data"
NO_RULES: tuple[SecurityRule, ...] = ()
P4D = "ml.p4d.24xlarge"
MISSING = NotQueried("ec2:DescribeX", GROUPS, "something", "AccessDenied", True)


def vpc_of(case: Case) -> str:
    assert case.facts.network is not None and not isinstance(case.facts.network.subnets, NotQueried)
    return case.facts.network.subnets[0].vpc_id


def zone_of(case: Case) -> str:
    assert case.facts.network is not None and not isinstance(case.facts.network.subnets, NotQueried)
    return case.facts.network.subnets[0].zone


def without_efa(case: Case) -> Case:
    return case.said(types={"p4d.24xlarge": InstanceType("p4d.24xlarge", False)})


def everything(group: str) -> SecurityRule:
    return SecurityRule("-1", None, frozenset({group}), ())


def with_efa_rules(case: Case) -> Case:
    """Nodes and file systems pass all traffic among themselves and to each other, beside what they passed before."""
    more = (everything(nodes_of(case)), everything(storage_of(case)))
    for index, name in enumerate((nodes_of(case), storage_of(case))):
        assert case.facts.network is not None
        group = case.facts.network.security_group_if_known(name)
        assert group is not None
        case = case.rules(index, ingress=(*group.ingress, *more), egress=(*group.egress, *more))
    return case


def tcp(cidr: str, low: int = 0, high: int = 65535) -> SecurityRule:
    return SecurityRule("tcp", (low, high), frozenset(), (IPv4Network(cidr),))


def system_of(case: Case) -> FileSystem:
    (system,) = case.facts.file_systems["efs"].values()
    assert isinstance(system, FileSystem)
    return system


def points_of(case: Case) -> list[str]:
    return list(system_of(case).points)


def efs_id(case: Case) -> str:
    return system_of(case).id


def dns_of(case: Case) -> str:
    return next(mount.dns_name for mount in case.settings.mounts if isinstance(mount, LustreMount))


def judge(right: Case, change: Callable[[Case], Case], wanted: list[tuple[str, str, str]]) -> None:
    """The findings after a change are exactly these; every one says what and what to do."""
    changed = change(right)
    found = check.run_all_preflight_checks(*changed)
    assert [(one.code, one.severity, one.path) for one in found] == wanted, [one.render() for one in found]
    assert all(one.hint and one.message for one in found)


def network_of(case: Case) -> NetworkFacts:
    assert case.facts.network is not None
    return case.facts.network
