"""Whether secrets are there; their values are never asked for. Read-only calls; errors are ours."""

from __future__ import annotations

from typing import Optional

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.errors import NOT_FOUND, translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError


class Secrets:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._secrets = client("secretsmanager", region, connections=connections)
        self._parameters = client("ssm", region, connections=connections)

    def secret_exists(self, arn: str) -> bool:
        """Whether Secrets Manager has the secret, and it is not being deleted."""
        try:
            with translate_aws_errors("DescribeSecret", arn):
                return "DeletedDate" not in self._secrets.describe_secret(SecretId=arn)
        except AwsError as err:
            if err.code in NOT_FOUND:
                return False
            raise

    def parameter_exists(self, arn: str) -> bool:
        """Whether Parameter Store has the parameter of the ARN."""
        name = arn.split(":parameter", 1)[1]
        # Without a path the ARN has a slash that the name has not.
        if name.count("/") == 1:
            names = [name, name.lstrip("/")]
        else:
            names = [name]
        with translate_aws_errors("DescribeParameters", arn):
            filters = [{"Key": "Name", "Option": "Equals", "Values": names}]
            pages = responses.paginate(self._parameters, "describe_parameters", ParameterFilters=filters)
            return any(page["Parameters"] for page in pages)
