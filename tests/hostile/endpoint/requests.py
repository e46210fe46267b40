"""Requests to a rehearsal's endpoint: signed, unsigned, by any client."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import socket
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from hyperpod_rehearsal.standins.mountpoint_s3 import sigv4
from hyperpod_rehearsal.standins.mountpoint_s3.sigv4 import AccessKey

BUCKET = "sagemaker-hyperpod-kit-demo"
CREATE = {
    "ClusterName": "evil",
    "InstanceGroups": [
        {
            "InstanceGroupName": "g",
            "InstanceType": "ml.c5.large",
            "InstanceCount": 1,
            "ExecutionRole": "arn:aws:iam::111122223333:role/x",
            "LifeCycleConfig": {"SourceS3Uri": f"s3://{BUCKET}/evil/", "OnCreate": "on_create.sh"},
        }
    ],
}


def ask(url, method, path, body=b"", headers=None):
    """(status, body) of one request over a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def signed(url, method, path, body=b"", *, who, service="s3", now=None, **headers):
    path, _, query = path.partition("?")
    whole = {
        "host": urlsplit(url).netloc,
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return sigv4.sign_request_headers(who, "us-east-1", method, path, query, whole, now, service)


def of(key) -> AccessKey:
    return AccessKey(key.id, key.secret, key.token)


def client(service, url, key, token=None, **config):
    return boto3.client(
        service,
        "us-east-1",
        endpoint_url=url,
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
        aws_session_token=key.token if token is None else token,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **config),
    )


def code_of(call, **request) -> str:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return caught.value.response["Error"]["Code"]


def raw(url, *pieces: bytes) -> bytes:
    """What comes back for these bytes until the other side closes."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        said = b""
        with contextlib.suppress(OSError):  # shutdown says ENOTCONN, which is no ConnectionError
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                said += part
    return said


def lines(url, method, path, headers, *more: bytes) -> bytes:
    named = [f"{name}: {value}".encode() for name, value in headers.items()]
    return b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), *named, *more]) + b"\r\n\r\n"
