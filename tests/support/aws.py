"""AWS on loopback: the rehearsal's server in this process, and control planes for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import pytest

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.sagemaker.api import ApiError
from hyperpod_rehearsal.server import Server, serve

ARN = "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcdefghijkl"
KEYS = {"test": Key("test", "test")}


@contextmanager
def serving(
    store: StoredBuckets, control: Any = None, *, keys: Mapping[str, Key] = KEYS, **services: Any
) -> Iterator[Server]:
    """The server on a port of its own."""
    server = serve([("127.0.0.1", 0)], store, control, keys=dict(keys), **services)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def endpoint(
    monkeypatch: pytest.MonkeyPatch,
    store: StoredBuckets,
    control: Any = None,
    *,
    keys: Mapping[str, Key] = KEYS,
    variable: str = "AWS_ENDPOINT_URL",
) -> Iterator[str]:
    """Its URL; AWS's variables name it, of all services or of one, and keys that it takes."""
    with serving(store, control, keys=keys) as server:
        monkeypatch.setenv(variable, server.url)
        as_client(monkeypatch)
        yield server.url


def as_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS's variables for a client of the keys above."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


class ListedNodes:
    """A control plane that knows one cluster and its nodes.

    groups: of the nodes, the last one of all further ones; addresses: of the nodes; sources: group -> where its
    lifecycle scripts come from, no cluster where that is empty; named: whether the list has host names, from which
    addresses follow.
    """

    def __init__(
        self,
        *groups: str,
        addresses: Sequence[str] = (),
        sources: Optional[Dict[str, str]] = None,
        instance_id: str = "i-{:017x}",
        named: bool = False,
    ) -> None:
        self.addresses, self.sources = list(addresses), sources
        self._groups, self._instance_id, self._named = groups, instance_id, named

    def describe_cluster(self, name: str) -> Dict[str, Any]:
        if self.sources == {}:
            raise ApiError("ResourceNotFound", f"Cluster {name} does not exist")
        groups = [
            {"InstanceGroupName": group, "LifeCycleConfig": {"SourceS3Uri": uri, "OnCreate": "on_create.sh"}}
            for group, uri in (self.sources or {}).items()
        ]
        return {"ClusterArn": ARN, "ClusterName": name, "ClusterStatus": "InService", "InstanceGroups": groups}

    def list_cluster_nodes(self, name: str) -> List[Dict[str, Any]]:
        return [self._node(index) for index in range(len(self.addresses))]

    def describe_cluster_node(self, name: str, node_id: str) -> Dict[str, Any]:
        nodes = self.list_cluster_nodes(name)
        index = [node["InstanceId"] for node in nodes].index(node_id)
        return {**nodes[index], "PrivatePrimaryIp": self.addresses[index]}

    def _node(self, index: int) -> Dict[str, Any]:
        found = {
            "InstanceGroupName": self._groups[min(index, len(self._groups) - 1)],
            "InstanceId": self._instance_id.format(index),
            "InstanceType": "ml.c5.xlarge",
            "LaunchTime": 1767225600.0,
            "InstanceStatus": {"Status": "Running"},
        }
        host = f"ip-{self.addresses[index].replace('.', '-')}.ec2.internal"
        return {**found, "PrivateDnsHostname": host} if self._named else found
