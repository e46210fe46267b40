"""What moto lacks, added to moto: an FSx with a network, SageMaker's quotas over pages, whole ids of access points."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moto.ec2 import ec2_backends
from moto.efs.models import AccessPoint
from moto.fsx.exceptions import FileSystemNotFound
from moto.fsx.models import FileSystem, FSxBackend
from moto.fsx.responses import FSxResponse
from moto.servicequotas.responses import ServiceQuotasResponse

QUOTAS: dict[str, float] = {}
"""SageMaker's applied quotas by name. Each test sets its own."""
VOLUMES: dict[str, list[str]] = {}
"""Paths of OpenZFS volumes by file system."""

_make_point = AccessPoint.__init__
_create, _describe, _to_dict = FSxBackend.create_file_system, FSxBackend.describe_file_systems, FileSystem.to_dict


def install(patch: pytest.MonkeyPatch) -> None:
    """Teach moto what FSx and Service Quotas do on AWS."""
    patch.setattr(AccessPoint, "__init__", _with_a_whole_id)
    patch.setattr(FSxBackend, "create_file_system", _create_with_interfaces)
    patch.setattr(FSxBackend, "describe_file_systems", _describe_or_refuse)
    patch.setattr(FileSystem, "to_dict", _all_of_it)
    patch.setattr(FSxResponse, "describe_volumes", _describe_volumes, raising=False)
    patch.setattr(ServiceQuotasResponse, "list_service_quotas", _list_quotas, raising=False)


def _with_a_whole_id(self: AccessPoint, *args: Any, **kwargs: Any) -> None:
    """Ids of access points have 17 digits, as efs-utils checks them; moto gives 8."""
    _make_point(self, *args, **kwargs)
    short = self.access_point_id
    self.access_point_id = short.replace("fsap-", "fsap-000000000")
    self.access_point_arn = self.access_point_arn.replace(short, self.access_point_id)


def _create_with_interfaces(self: FSxBackend, *args: Any, **kwargs: Any) -> FileSystem:
    made = _create(self, *args, **kwargs)
    network = ec2_backends[self.account_id][self.region_name]
    made.interfaces = [  # type: ignore[attr-defined]
        network.create_network_interface(
            network.get_subnet(subnet),
            None,  # type: ignore[arg-type]
            group_ids=made.security_group_ids,
            description="fsx",
        )
        for subnet in made.subnet_ids
    ]
    return made


def _all_of_it(self: FileSystem) -> dict[str, Any]:
    interfaces = self.interfaces  # type: ignore[attr-defined]
    described = {
        **_to_dict(self),
        "Lifecycle": "AVAILABLE",
        "VpcId": interfaces[0].subnet.vpc_id,
        "NetworkInterfaceIds": [interface.id for interface in interfaces],
    }
    if self.file_system_type == "LUSTRE":
        described["LustreConfiguration"] = {"MountName": "abcdefgh", **(self.lustre_configuration or {})}
    return described


def _describe_or_refuse(self: FSxBackend, *args: Any, **kwargs: Any) -> Any:
    for wanted in kwargs.get("file_system_ids") or ():
        if wanted not in self.file_systems:
            raise FileSystemNotFound(wanted)
    return _describe(self, *args, **kwargs)


def _describe_volumes(self: FSxResponse) -> str:
    (wanted,) = json.loads(self.body)["Filters"]
    paths = [path for system in wanted["Values"] for path in VOLUMES.get(system, [])]
    return json.dumps({"Volumes": [{"OpenZFSConfiguration": {"VolumePath": path}} for path in paths]})


def _list_quotas(self: ServiceQuotasResponse) -> str:
    """Two a page, whatever is asked for: AWS may give fewer too."""
    start = int(json.loads(self.body).get("NextToken", "0"))
    names = list(QUOTAS)
    quotas = [
        {"QuotaName": name, "QuotaCode": f"L-{start + number:08X}", "Value": QUOTAS[name], "ServiceCode": "sagemaker"}
        for number, name in enumerate(names[start : start + 2])
    ]
    more = {"NextToken": str(start + 2)} if start + 2 < len(names) else {}
    return json.dumps({"Quotas": quotas, **more})
