"""The metadata service of a node, asked by curl as AWS's own scripts ask and by the kit's own reader of credentials."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest
from botocore.utils import InstanceMetadataFetcher

from hyperpod_kit.signing.role import environment_or_node_role_credentials
from hyperpod_rehearsal.metadata.instance_metadata import InstanceIdentity, Metadata
from hyperpod_rehearsal.metadata.metadata_server import MetadataServers

NODE = InstanceIdentity(
    "i-0123456789abcdef0",
    "ml.g5.8xlarge",
    "10.1.42.18",
    "ip-10-1-42-18",
    "us-east-1",
    "111122223333",
    "arn:aws:iam::111122223333:role/service/ClusterRole",
    "REHEARSAL",
    "secret",
)


@pytest.fixture
def service():
    listening = socket.create_server(("127.0.0.1", 0))
    servers = MetadataServers(lambda netns: listening)
    servers.start("netns", NODE)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    servers.stop(NODE.id)
    servers.stop(NODE.id)


def curl(*arguments):
    """(status, body)"""
    done = subprocess.run(
        ["curl", "-s", "--noproxy", "*", "--max-time", "20", "-w", "\n%{http_code}", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


@pytest.mark.needs("curl")
def test_what_scripts_ask_with_curl(service):
    ttl_header = "X-aws-ec2-metadata-token-ttl-seconds: 21600"
    status, token = curl("-X", "PUT", f"{service}/latest/api/token", "-H", ttl_header)
    assert status == 200

    def get(path):
        return curl("-H", f"X-aws-ec2-metadata-token: {token}", f"{service}/latest/{path}")

    assert get("meta-data/instance-type") == (200, "g5.8xlarge")  # EC2's name: scripts put `ml.` before it
    assert get("meta-data/instance-id") == (200, NODE.id)
    assert get("meta-data/placement/availability-zone") == (200, "us-east-1a")
    assert get("meta-data/placement/") == (200, "availability-zone\navailability-zone-id\nregion")
    assert get("meta-data")[1].splitlines()[1:3] == ["iam/", "instance-id"]
    assert json.loads(get("dynamic/instance-identity/document")[1])["region"] == "us-east-1"
    assert get("meta-data/spot/instance-action")[0] == 404
    assert curl(f"{service}/latest/meta-data/instance-id")[0] == 401  # version 1
    assert curl("-H", "X-aws-ec2-metadata-token: made-up", f"{service}/latest/meta-data/instance-id")[0] == 401


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 400),
        ({"x-aws-ec2-metadata-token-ttl-seconds": "0"}, 400),
        ({"x-aws-ec2-metadata-token-ttl-seconds": "21601"}, 400),
        ({"x-aws-ec2-metadata-token-ttl-seconds": "x"}, 400),
        ({"x-aws-ec2-metadata-token-ttl-seconds": "60", "x-forwarded-for": "10.0.0.1"}, 403),
        ({"x-aws-ec2-metadata-token-ttl-seconds": "60"}, 200),
    ],
)
def test_who_gets_a_token(headers, status):
    assert Metadata(NODE).respond("PUT", "/latest/api/token", headers)[0] == status


def test_a_token_ends():
    now = [1000.0]
    service = Metadata(NODE, lambda: now[0])
    token = service.respond("PUT", "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds": "60"})[2].decode()
    request = ("GET", "/latest/meta-data/instance-id", {"x-aws-ec2-metadata-token": token})
    assert service.respond(*request)[0] == 200
    now[0] += 60
    assert service.respond(*request)[0] == 401


def test_the_kit_and_an_sdk_find_the_roles_credentials(service):
    key, reason = environment_or_node_role_credentials({"AWS_EC2_METADATA_SERVICE_ENDPOINT": service})
    assert key is not None and (key.access_key, key.secret_key) == ("REHEARSAL", "secret"), reason
    sdk = InstanceMetadataFetcher(base_url=service).retrieve_iam_role_credentials()
    assert (sdk["role_name"], sdk["access_key"], sdk["secret_key"]) == ("ClusterRole", "REHEARSAL", "secret")


def test_an_instance_without_a_role_has_no_credentials():
    service = Metadata(InstanceIdentity(**{**NODE.__dict__, "role": ""}))
    token = service.respond("PUT", "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds": "60"})[2].decode()
    path = "/latest/meta-data/iam/security-credentials/"
    assert service.respond("GET", path, {"x-aws-ec2-metadata-token": token})[0] == 404
