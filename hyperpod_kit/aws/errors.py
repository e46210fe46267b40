"""botocore's exceptions -> ours: an answer with an error is AwsError, no answer is Unreachable (exit 3)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, Optional
from urllib.parse import urlsplit

from hyperpod_kit.errors import AwsError, Unreachable

NOT_FOUND = ("ResourceNotFound", "ResourceNotFoundException", "NoSuchBucket", "NoSuchKey", "404")
DENIED = (
    "AccessDenied",
    "AccessDeniedException",
    "403",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "ExpiredTokenException",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
)
_HINTS = {
    "ResourceInUse": "hyperpod-kit describe-cluster, or choose another name",
    "ResourceLimitExceeded": "ask for a higher quota in Service Quotas, or lower the counts",
    "ThrottlingException": "wait a minute, then again",
    "ResourceNotFound": "aws sagemaker list-clusters",
    "FileSystemNotFound": "aws efs describe-file-systems, in the cluster's region",
}


@contextmanager
def translated(operation: str, target: str = "") -> Iterator[None]:
    """Run one AWS call. `target`: the bucket or cluster that it is about, for the message.

    Raises AwsError or Unreachable in place of botocore's exceptions.
    """
    from botocore import exceptions as boto
    from urllib3.exceptions import HTTPError

    what = f"{operation} {target}".rstrip()
    try:
        yield
    except boto.ClientError as err:
        error = err.response.get("Error", {})
        code = str(error.get("Code", "Unknown"))
        raise AwsError(
            what, code, str(error.get("Message", "")).strip() or "no message", hint=_hint(code, target)
        ) from err
    except (
        boto.NoCredentialsError,
        boto.PartialCredentialsError,
        boto.CredentialRetrievalError,
        boto.TokenRetrievalError,
    ) as err:
        raise Unreachable(
            f"{what}: there are no credentials to sign with: {err}",
            hint="aws sts get-caller-identity shows whom you are; `aws configure` or AWS_PROFILE sets it",
        ) from err
    except (boto.ProfileNotFound, boto.NoRegionError) as err:
        raise Unreachable(
            f"{what}: {err}", hint="set AWS_PROFILE and AWS_DEFAULT_REGION, or name the configuration file"
        ) from err
    except (boto.HTTPClientError, boto.ConnectionError, HTTPError, OSError) as err:
        raise Unreachable(
            f"{what}: {_no_answer(err)}", hint="check the network and AWS_ENDPOINT_URL, then again"
        ) from err
    except boto.ParamValidationError as err:
        raise AwsError(
            what,
            "ParamValidation",
            " ".join(str(err).split()),
            hint="the installed botocore may be older than the field: pip install -U boto3",
        ) from err
    except boto.BotoCoreError as err:
        raise AwsError(what, type(err).__name__, str(err)) from err


def _no_answer(err: Exception) -> str:
    """Who did not answer. botocore's own sentence carries the whole signed URL."""
    endpoint = urlsplit(str(getattr(err, "kwargs", {}).get("endpoint_url", "")))
    why = "took too long" if "imeout" in type(err).__name__ else "does not answer"
    return f"{endpoint.scheme}://{endpoint.netloc} {why}" if endpoint.netloc else f"{why}: {err}"


def _hint(code: str, target: str) -> Optional[str]:
    if code in DENIED:
        return "aws sts get-caller-identity shows whom you are; that role needs a permission for this call"
    if code == "NoSuchBucket":
        return f"aws s3 mb {'/'.join(target.split('/')[:3])}, or name another bucket in the configuration"
    return _HINTS.get(code)
