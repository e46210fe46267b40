"""What one answer may take: time, bytes, pages; and what is said meanwhile."""

from __future__ import annotations

import logging
from typing import Any, Iterator, cast

import boto3
import pytest
from botocore.config import Config

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.errors import Unreachable, UnreadableAnswer
from tests.hostile.aws.service import SLOW, Liar

SECONDS = 0.6
"""What an answer may take that does not come."""
ENOUGH = 60.0
"""What one may take that does."""


@pytest.fixture
def liar() -> Iterator[Liar]:
    server = Liar()
    yield server
    server.close()


@pytest.fixture
def sagemaker(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> Any:
    return client(liar, SECONDS, monkeypatch)


@pytest.fixture
def patient(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> Any:
    return client(liar, ENOUGH, monkeypatch)


def client(liar: Liar, seconds: float, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(responses.SILENCE, "given_up", False)
    options = Config(retries={"mode": "standard", "total_max_attempts": 2}, s3={"addressing_style": "path"})
    keys = {"aws_access_key_id": "t", "aws_secret_access_key": "t", "region_name": "us-east-1"}
    made = responses.install_response_limits_and_checks(
        boto3.client("sagemaker", endpoint_url=liar.url, config=options, **keys)
    )
    made._endpoint.http_session._seconds = seconds
    made._endpoint.http_session._quiet = seconds / 2
    return made


@pytest.mark.parametrize("mode", SLOW)
def test_a_service_that_does_not_come_to_an_end_is_given_up(
    mode: str, sagemaker: Any, liar: Liar, caplog: pytest.LogCaptureFixture
) -> None:
    liar.mode = mode
    caplog.set_level(logging.WARNING)
    with pytest.raises(Unreachable, match="timed out"), translate_aws_errors("DescribeCluster", "demo"):
        sagemaker.describe_cluster(ClusterName="demo")
    assert liar.asked == ["DescribeCluster"] * 2
    assert [record.getMessage() for record in caplog.records if record.name == responses.__name__] == [
        f"sagemaker: no response for {SECONDS / 2:g} s; still waiting",
        f"sagemaker: no complete response within {SECONDS:g} s; retrying",
    ] * 2


def test_after_one_that_was_silent_nobody_waits_as_long_for_the_next(
    sagemaker: Any, liar: Liar, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(responses, "SECONDS_AFTER_SILENCE", 0.2)
    liar.mode = "silent"
    for _ in range(2):
        with pytest.raises(Unreachable), translate_aws_errors("DescribeCluster", "demo"):
            sagemaker.describe_cluster(ClusterName="demo")
    assert [cast(Any, record.args)[1] for record in caplog.records if "retrying" in record.msg] == [SECONDS] * 2 + [
        0.2
    ] * 2
    liar.mode = "good"
    monkeypatch.setattr(responses, "SECONDS_AFTER_SILENCE", ENOUGH)
    with translate_aws_errors("DescribeCluster", "demo"):
        sagemaker.describe_cluster(ClusterName="demo")
    assert not responses.SILENCE.given_up


def test_a_large_answer_is_not_read_whole(patient: Any, liar: Liar) -> None:
    liar.mode = "big"
    with pytest.raises(UnreadableAnswer, match="larger than 8 MiB"), translate_aws_errors("DescribeCluster", "demo"):
        patient.describe_cluster(ClusterName="demo")


def test_what_is_said_of_a_shape(patient: Any, liar: Liar) -> None:
    liar.mode = "wrong6"
    with pytest.raises(UnreadableAnswer, match=r"0\.InstanceGroupName is missing"):
        patient.list_cluster_nodes(ClusterName="demo")
    with pytest.raises(UnreadableAnswer, match="none of this response's members"):
        patient.describe_cluster(ClusterName="demo")
    liar.mode = "trunc"
    with pytest.raises(UnreadableAnswer, match="18 bytes that are not JSON"):
        patient.list_cluster_nodes(ClusterName="demo")


@pytest.mark.parametrize(("tokens", "why"), [("aaa", "form a cycle"), ("abcdefgh", "more than 5 pages")])
def test_a_list_ends(tokens: str, why: str) -> None:
    left = iter(tokens)
    with pytest.raises(UnreadableAnswer, match=why):
        list(responses.fetch_pages("List", lambda place: {"NextToken": next(left)}, "NextToken", most=5))


def test_an_object_ends(liar: Liar) -> None:
    class Endless:
        def read(self, most: int) -> bytes:
            return b"x" * most

    with pytest.raises(UnreadableAnswer, match="larger than 1 MiB"):
        responses.read_bounded_body(Endless(), "GetObject", largest=1 << 20, seconds=5.0)


def test_what_fails_fails_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        responses.run_with_timeout(5.0, lambda: 1 // 0)
