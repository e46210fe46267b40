"""botocore's exceptions and how they read."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto

from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.errors import AbsentAtAws, AwsError, NoCredentials, Throttled, Unreachable, UnreadableAnswer


def client_error(code: str, status: int = 400) -> boto.ClientError:
    answer = {"Error": {"Code": code, "Message": "words"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(answer, "Op")


@pytest.mark.parametrize(
    ("raised", "kind", "message", "hint"),
    [
        (
            client_error("AccessDeniedException"),
            AwsError,
            "Op x: AccessDeniedException: words",
            "aws sts get-caller-identity",
        ),
        (client_error("ResourceNotFound"), AbsentAtAws, "Op x: ResourceNotFound: words", "aws sagemaker list-clusters"),
        (client_error("Odd"), AwsError, "Op x: Odd: words", None),
        (
            boto.EndpointConnectionError(endpoint_url="http://127.0.0.1:1/secret?sig=1"),
            Unreachable,
            "Op x: http://127.0.0.1:1 does not answer",
            "check the network",
        ),
        (
            boto.ReadTimeoutError(endpoint_url="http://h/"),
            Unreachable,
            "Op x: http://h timed out",
            "check the network",
        ),
        (boto.NoCredentialsError(), NoCredentials, "Op x: no credentials", "aws sts get-caller-identity"),
        (boto.NoRegionError(), Unreachable, "Op x: no region is set", "--region"),
        (
            boto.InvalidRegionError(region_name="us east"),
            Unreachable,
            "Op x: Provided region",
            "use the form us-east-1",
        ),
        (boto.ProfileNotFound(profile="p"), NoCredentials, "Op x: The config profile", "aws configure list-profiles"),
        (boto.UnauthorizedSSOTokenError(), NoCredentials, "Op x: no credentials", "aws sts"),
        (client_error("ThrottlingException"), Throttled, "Op x: AWS is throttling calls (Thr", "wait a minute"),
        (client_error("SlowDown"), Throttled, "Op x: AWS is throttling calls", "wait a minute"),
        (client_error("ExpiredTokenException"), NoCredentials, "Op x: the credentials have expired", "log in again"),
        (client_error("UnrecognizedClientException"), NoCredentials, "Op x: AWS does not recognize these", "aws sts"),
        (
            client_error("RequestTimeTooSkewed"),
            NoCredentials,
            "Op x: RequestTimeTooSkewed",
            "check this machine's clock",
        ),
        (
            client_error("InternalFailure", 500),
            Unreachable,
            "Op x: AWS reports an internal error",
            "try again in a minute",
        ),
        (
            boto.EndpointConnectionError(
                endpoint_url="https://api.sagemaker.us-nowhere-1.amazonaws.com/?sig=1",
                error="<urllib3 object>: Failed to resolve 'x' ([Errno -2] Name or service not known)",
            ),
            Unreachable,
            "Op x: the host name api.sagemaker.us-nowhere-1.amazonaws.com does not resolve",
            "check the network and the region's name",
        ),
        (
            boto.SSLError(endpoint_url="https://h/x", error="certificate verify failed"),
            Unreachable,
            "Op x: the certificate of https://h is not trusted: certificate verify failed",
            "set AWS_CA_BUNDLE",
        ),
        (ConnectionResetError("reset"), Unreachable, "Op x: does not answer: reset", "check the network"),
        (
            boto.ParamValidationError(report="Unknown parameter"),
            AwsError,
            "Op x: ParamValidation",
            "the installed botocore",
        ),
    ],
)
def test_translation(raised: Exception, kind: type[Exception], message: str, hint: str | None) -> None:
    with pytest.raises(kind) as caught, translate_aws_errors("Op", "x"):
        raise raised
    assert type(caught.value) is kind and str(caught.value).startswith(message)
    found = caught.value.hint  # type: ignore[attr-defined]
    assert found is None if hint is None else found.startswith(hint)


def test_no_bucket_says_how_to_make_it() -> None:
    with pytest.raises(AwsError) as caught, translate_aws_errors("PutObject", "s3://sagemaker-x/a/b"):
        raise client_error("NoSuchBucket")
    assert caught.value.hint == "aws s3 mb s3://sagemaker-x, or name another bucket in the configuration"


def test_a_member_that_is_not_there_is_the_answers_fault() -> None:
    with pytest.raises(
        UnreadableAnswer, match="Op: the response cannot be read: KeyError: 'x'"
    ) as caught, translate_aws_errors("Op"):
        raise KeyError("x")
    assert isinstance(caught.value.__cause__, KeyError)  # for --debug


def test_our_own_mistakes_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), translate_aws_errors("Op"):
        raise ZeroDivisionError("x")
