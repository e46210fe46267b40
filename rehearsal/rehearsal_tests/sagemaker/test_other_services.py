"""Clients of services that a rehearsal does not have, in the formats that their services speak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

HERE = "only SageMaker's clusters, S3, EFS and the nodes' logs are here: this is a rehearsal and has no "


@pytest.mark.parametrize(
    "service, operation, arguments, what",
    [
        ("sts", "get_caller_identity", {}, "GetCallerIdentity of sts"),
        ("iam", "get_role", {"RoleName": "x"}, "GetRole of iam"),
        ("ec2", "describe_vpcs", {}, "DescribeVpcs of ec2"),
        ("fsx", "describe_file_systems", {}, "DescribeFileSystems of fsx"),
        ("ssm", "describe_instance_information", {}, "DescribeInstanceInformation of ssm"),
        ("cloudwatch", "list_metrics", {}, "ListMetrics of monitoring"),
        ("eks", "list_clusters", {}, "eks"),
        ("route53", "list_hosted_zones", {}, "route53"),
        ("sagemaker-runtime", "invoke_endpoint", {"EndpointName": "x", "Body": b""}, "sagemaker"),
    ],
)
def test_a_client_reads_which_services_are_here(endpoint, service, operation, arguments, what):
    client = boto3.client(
        service,
        endpoint_url=endpoint.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with pytest.raises(ClientError) as caught:
        getattr(client, operation)(**arguments)
    error = caught.value.response["Error"]
    assert (error["Code"], error["Message"]) == ("UnknownOperationException", HERE + what)


def test_awss_own_command_line_prints_it(endpoint):
    done = subprocess.run(
        [str(Path(sys.executable).with_name("aws")), "sts", "get-caller-identity"],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "AWS_ENDPOINT_URL": endpoint.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
    )
    assert done.returncode != 0 and HERE + "GetCallerIdentity of sts" in done.stderr


def test_a_call_of_sagemaker_that_is_not_here_says_which_are(client):
    with pytest.raises(ClientError, match="does not implement ListTrainingJobs; of SageMaker it has AddTags, Batch"):
        client.list_training_jobs()
