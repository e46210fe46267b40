import json
import time
import urllib.error
import urllib.request

import pytest

from hyperpod_rehearsal.s3.faults import Faults, S3Fault
from rehearsal_tests.s3.conftest import BUCKET
from rehearsal_tests.s3.raw import signed
from rehearsal_tests.s3.test_objects import status_of
from tests.support.wait import until


def control(endpoint, what, method="GET", content=None):
    url, body = f"{endpoint.url}/_rehearsal/{what}", b"" if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, body or None, signed(url, method, body=body), method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_a_status_for_so_many_requests(s3, store):
    store.put(BUCKET, "ckpt/1", b"x")
    store.faults.add(S3Fault(path=r"^sagemaker-test/ckpt/", status=503, count=2, method="GET"))
    assert status_of(s3.get_object, Bucket=BUCKET, Key="ckpt/1") == (503, "SlowDown")
    s3.put_object(Bucket=BUCKET, Key="ckpt/2", Body=b"another method")
    s3.put_object(Bucket=BUCKET, Key="other", Body=b"another key")
    assert status_of(s3.get_object, Bucket=BUCKET, Key="ckpt/1")[0] == 503
    assert s3.get_object(Bucket=BUCKET, Key="ckpt/1")["Body"].read() == b"x"
    assert store.faults.to_json() == []


def test_a_refused_put_stores_nothing(s3, store):
    store.faults.add(S3Fault(status=403, method="PUT"))
    assert status_of(s3.put_object, Bucket=BUCKET, Key="k", Body=bytes(1 << 20)) == (403, "AccessDenied")
    assert not store.exists(BUCKET, "k")


def test_delay_and_bandwidth(s3, store):
    store.put(BUCKET, "k", bytes(100_000))
    store.faults.add(S3Fault(delay=0.2, bandwidth=500_000, count=2))
    started = time.monotonic()
    s3.get_object(Bucket=BUCKET, Key="k")["Body"].read()
    downloaded = time.monotonic()
    s3.put_object(Bucket=BUCKET, Key="up", Body=bytes(100_000))
    assert downloaded - started >= 0.38
    assert time.monotonic() - downloaded >= 0.38


def logged(store, method, pattern, count):
    """The log's entries for these requests; one is written only after its answer is on its way, so they are awaited."""
    until(lambda: len(store.requests.entries(method, pattern)) >= count, what=f"log of {count} requests")
    return store.requests.entries(method, pattern)


def test_over_http(endpoint, s3, store):
    assert control(endpoint, "fault", "POST", {"path": "x", "status": 500})[0]["status"] == 500
    assert status_of(s3.put_object, Bucket=BUCKET, Key="x", Body=b"")[0] == 500
    assert len(control(endpoint, "fault")) == 1
    assert control(endpoint, "fault", "DELETE") == []
    s3.put_object(Bucket=BUCKET, Key="x", Body=b"1234")
    assert [entry.status for entry in logged(store, "PUT", "/x$", 2)] == [500, 200]
    last = control(endpoint, "requests")[-1]
    assert (last["method"], last["path"], last["status"], last["body_bytes"]) == ("PUT", f"{BUCKET}/x", 200, 4)


@pytest.mark.parametrize("content", [{"no": "such field"}, {"path": "("}, ["a", "list"], 7])
def test_what_is_no_fault_is_refused(endpoint, content):
    with pytest.raises(urllib.error.HTTPError) as caught:
        control(endpoint, "fault", "POST", content)
    assert caught.value.code == 400
    caught.value.close()


def test_the_slower_bandwidth_and_both_delays_count():
    faults = Faults()
    faults.add(S3Fault(bandwidth=5, delay=1))
    faults.add(S3Fault(bandwidth=3, delay=2))
    effect = faults.consume_matching("GET", "k")
    assert (effect.bandwidth, effect.delay, effect.status) == (3, 3, 0)
