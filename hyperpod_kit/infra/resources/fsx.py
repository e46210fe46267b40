"""FSx: a file system for each DNS name that the configuration has, in the first subnet."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.infra.part import KEPT, MultipleRule, TemplatePart, get_att, logical_id_part, name_tags, ref, resource
from hyperpod_kit.infra.resources.groups import STORAGE
from hyperpod_kit.infra.resources.network import BLOCK
from hyperpod_kit.model.mounts.openzfs import ROOT_VOLUME
from hyperpod_kit.preflight.aws_facts.fsx import FsxQuery, fsx_mounts_with_config_paths, parse_fsx_region_and_id
from hyperpod_kit.preflight.mounts.lustre import EFA_CAPACITY_STEPS

OPTIONS = ["rw", "crossmnt", "root_squash"]
"""Of OpenZFS exports: root of a node is nobody there, as other users' files want it."""


def file_system_part(settings: Settings, requested: FsxQuery, number: int) -> TemplatePart:
    """Return the part of one file system. Its size is a parameter: `hyperpod-kit storage plan` says how large it
    must be."""
    name = f"Fsx{number}"
    its = [
        (kind, mount, dns, of)
        for kind, mount, dns, of in fsx_mounts_with_config_paths(settings)
        if parse_fsx_region_and_id(mount.dns_name, settings.cluster.region) == (requested.region, requested.id)
    ]
    made = _TYPES[its[0][0].name](name, [mount for _, mount, _, _ in its])
    common = {
        "FileSystemType": its[0][0].name,
        "SubnetIds": [ref("Subnet1")],
        "SecurityGroupIds": [ref(STORAGE)],
        "StorageCapacity": ref(f"{name}Capacity"),
        "Tags": name_tags(f"{settings.cluster.name} {name}"),
    }
    resources = {name: resource("AWS::FSx::FileSystem", {**common, **made.properties}, **KEPT), **made.volumes}
    ids: dict[str, Any] = {}
    for _, _, dns, of in its:
        ids[dns] = get_att("DNSName", name)
        if made.mount_name:
            ids[of] = get_att("LustreMountName", name)
    paths = tuple(dict.fromkeys(path for path in ids))
    return TemplatePart(f"FSx {requested.id}", paths, resources, made.parameters, ids, made.rules)


class _FsxTypeAdditions:
    """What one type of file system adds. `mount_name`: whether FSx gives it one."""

    def __init__(self, properties: dict[str, Any], parameters: dict[str, Any], mount_name: bool) -> None:
        self.properties = properties
        self.parameters = parameters
        self.mount_name = mount_name
        self.volumes: dict[str, Any] = {}
        self.rules: tuple[MultipleRule, ...] = ()


def _lustre_properties_and_parameters(name: str, mounts: Sequence[Any]) -> _FsxTypeAdditions:
    configuration: dict[str, Any] = {
        "DeploymentType": "PERSISTENT_2",
        "PerUnitStorageThroughput": ref(f"{name}Throughput"),
        "DataCompressionType": "LZ4",
        "MetadataConfiguration": {"Mode": "AUTOMATIC"},
    }
    capacity, throughput = f"{name}Capacity", f"{name}Throughput"
    has_efa = any(mount.efa for mount in mounts)
    parameters = {
        capacity: _number_parameter("GiB: 1200, 2400 or a multiple of 2400.", 1200),
        throughput: _number_parameter("MB/s for each TiB.", 250, (125, 250, 500, 1000)),
    }
    if has_efa:
        configuration["EfaEnabled"] = True
        steps = ", ".join(f"{step} at {speed} MB/s" for speed, step in EFA_CAPACITY_STEPS.items())
        parameters[capacity] = _number_parameter(f"GiB, with EFA a multiple of: {steps}.", EFA_CAPACITY_STEPS[1000])
        parameters[throughput] = _number_parameter("MB/s for each TiB.", 1000, tuple(EFA_CAPACITY_STEPS))
    made = _FsxTypeAdditions({"FileSystemTypeVersion": "2.15", "LustreConfiguration": configuration}, parameters, True)
    if has_efa:
        made.rules = (MultipleRule(capacity, throughput, EFA_CAPACITY_STEPS, "GiB"),)
    return made


def _openzfs_properties_and_parameters(name: str, mounts: Sequence[Any]) -> _FsxTypeAdditions:
    exports = [{"ClientConfigurations": [{"Clients": str(BLOCK), "Options": OPTIONS}]}]
    configuration = {
        "DeploymentType": "SINGLE_AZ_HA_2",
        "ThroughputCapacity": ref(f"{name}Throughput"),
        "RootVolumeConfiguration": {"NfsExports": exports},
    }
    parameters = {
        f"{name}Capacity": _number_parameter("GiB: 64 to 524288.", 64),
        f"{name}Throughput": _number_parameter(
            "MB/s altogether.", 160, (160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240)
        ),
    }
    made = _FsxTypeAdditions({"OpenZFSConfiguration": configuration}, parameters, False)
    for export in sorted({mount.export for mount in mounts} - {ROOT_VOLUME}):
        made.volumes |= _nested_volume_resources(name, export, exports)
    return made


def _nested_volume_resources(name: str, export: str, exports: list[Any]) -> dict[str, Any]:
    """Return the resources of an export's volume and of the volumes above it."""
    volumes: dict[str, Any] = {}
    parent: Any = get_att("RootVolumeId", name)
    path = ROOT_VOLUME
    for part_of in export[len(ROOT_VOLUME) :].strip("/").split("/"):
        path = f"{path}/{part_of}"
        logical = f"{name}{logical_id_part(path)}"
        volumes[logical] = resource(
            "AWS::FSx::Volume",
            {
                "Name": part_of,
                "VolumeType": "OPENZFS",
                "OpenZFSConfiguration": {"ParentVolumeId": parent, "NfsExports": exports},
            },
            **KEPT,
        )
        parent = ref(logical)
    return volumes


def _number_parameter(description: str, default: int, allowed: Sequence[int] = ()) -> dict[str, Any]:
    given: dict[str, Any] = {"Type": "Number", "Description": description, "Default": default}
    if allowed:
        given["AllowedValues"] = list(allowed)
    return given


_TYPES: dict[str, Callable[[str, Sequence[Any]], _FsxTypeAdditions]] = {
    "LUSTRE": _lustre_properties_and_parameters,
    "OPENZFS": _openzfs_properties_and_parameters,
}
"""Type as FSx writes it -> what it adds."""
