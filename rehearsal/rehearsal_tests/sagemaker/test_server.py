import socket

import pytest

from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve


def test_several_addresses_share_one_port(tmp_path):
    server = serve([("127.0.0.1", 0), ("127.0.0.2", 0)], StoredBuckets(tmp_path), keys={})
    try:
        for host in ("127.0.0.1", "127.0.0.2"):
            socket.create_connection((host, server.port), timeout=60).close()
    finally:
        server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=60)


def test_an_address_that_cannot_be_had_leaves_none_open(tmp_path):
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError):
            serve([("127.0.0.1", port), ("127.0.0.2", port)], StoredBuckets(tmp_path), keys={})
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)
