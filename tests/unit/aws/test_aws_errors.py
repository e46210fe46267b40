"""botocore's exceptions and how they read."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto

from hyperpod_kit.aws.errors import translated
from hyperpod_kit.errors import AwsError, Unreachable


def client_error(code: str) -> boto.ClientError:
    return boto.ClientError({"Error": {"Code": code, "Message": "words"}}, "Op")


@pytest.mark.parametrize(
    ("raised", "kind", "message", "hint"),
    [
        (
            client_error("AccessDeniedException"),
            AwsError,
            "Op x: AccessDeniedException: words",
            "aws sts get-caller-identity",
        ),
        (client_error("ResourceNotFound"), AwsError, "Op x: ResourceNotFound: words", "aws sagemaker list-clusters"),
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
            "Op x: http://h took too long",
            "check the network",
        ),
        (boto.NoCredentialsError(), Unreachable, "Op x: there are no credentials", "aws sts get-caller-identity"),
        (boto.NoRegionError(), Unreachable, "Op x: You must specify a region", "set AWS_PROFILE"),
        (boto.ProfileNotFound(profile="p"), Unreachable, "Op x: The config profile", "set AWS_PROFILE"),
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
    with pytest.raises(kind) as caught, translated("Op", "x"):
        raise raised
    assert str(caught.value).startswith(message)
    found = caught.value.hint  # type: ignore[attr-defined]
    assert found is None if hint is None else found.startswith(hint)


def test_no_bucket_says_how_to_make_it() -> None:
    with pytest.raises(AwsError) as caught, translated("PutObject", "s3://sagemaker-x/a/b"):
        raise client_error("NoSuchBucket")
    assert caught.value.hint == "aws s3 mb s3://sagemaker-x, or name another bucket in the configuration"


def test_our_own_mistakes_pass_through() -> None:
    with pytest.raises(KeyError), translated("Op"):
        raise KeyError("x")
