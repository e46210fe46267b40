"""botocore's exceptions -> ours: an answer with an error is AwsError, one that nothing has the name is AbsentAtAws, no
answer is Unreachable (exit 3).

Also Unreachable: UnreadableAnswer (see responses.py), Throttled (AWS turned the call away), NoCredentials (it does not
know who asks), and an error of AWS's own (5xx): nothing was found out about the cluster then, and asking again is the
remedy.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, Optional
from urllib.parse import urlsplit

from hyperpod_kit.aws.responses import HINT, SILENCE
from hyperpod_kit.errors import (
    AbsentAtAws,
    AwsError,
    HyperpodKitError,
    NoCredentials,
    Throttled,
    Unreachable,
    UnreadableAnswer,
)

NOT_FOUND = ("ResourceNotFound", "ResourceNotFoundException", "NoSuchBucket", "NoSuchKey", "404")
DENIED = ("AccessDenied", "AccessDeniedException", "403", "UnauthorizedOperation")
THROTTLED = (
    # What botocore's standard retry mode repeats as throttling (botocore/retries/standard.py), and HEAD's bare numbers.
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "SlowDown",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "429",
    "503",
)
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
UNKNOWN_KEYS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidToken",
    "MissingAuthenticationToken",
    "AuthFailure",
)
CLOCK = ("RequestTimeTooSkewed", "InvalidSignatureException")
_HINTS = {
    "ResourceInUse": "hyperpod-kit describe-cluster, or choose another name",
    "ConflictException": "hyperpod-kit wait, then try again",
    "ResourceLimitExceeded": "request a higher quota in Service Quotas, or lower the counts",
    "ResourceNotFound": "aws sagemaker list-clusters",
    "FileSystemNotFound": "aws efs describe-file-systems, in the cluster's region",
    "TargetNotConnected": "the node's SSM agent may not be up yet, or session-manager-plugin or role may be wrong",
    # HeadObject has no body to name the code in.
    "400": "expired credentials can cause this error: aws sts get-caller-identity",
}
_WHO = "aws sts get-caller-identity shows your identity"
LONGEST = 1000
"""Characters of what an error answer says."""
_UNRESOLVED = ("name resolution", "Name or service not known", "nodename nor servname", "getaddrinfo", "resolve")


_OF_PARSING = (LookupError, TypeError, AttributeError, ValueError, RecursionError)
"""What botocore's parsers and the reading of a member raise on an answer of another shape."""


@contextmanager
def translate_aws_errors(operation: str, target: str = "") -> Iterator[None]:
    """Raise AwsError or Unreachable in place of botocore's exceptions from the block, which makes one AWS call
    and reads its answer, and in place of those that a malformed answer causes.

    `target`: the bucket or cluster that the call is about, for the message.
    """
    from botocore import exceptions as boto
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    what = f"{operation} {target}".rstrip()
    try:
        yield
    except boto.ClientError as err:
        raise _error_from_response(what, target, err) from err
    except (
        boto.NoCredentialsError,
        boto.PartialCredentialsError,
        boto.CredentialRetrievalError,
        boto.TokenRetrievalError,
        boto.UnauthorizedSSOTokenError,
        boto.SSOTokenLoadError,
    ) as err:
        raise NoCredentials(
            f"{what}: no credentials to sign with: {err}",
            hint=f"{_WHO}; set credentials with `aws configure`, `aws sso login` or AWS_PROFILE",
        ) from err
    except boto.ProfileNotFound as err:
        raise NoCredentials(f"{what}: {err}", hint="aws configure list-profiles, then set AWS_PROFILE") from err
    except boto.NoRegionError as err:
        raise Unreachable(
            f"{what}: no region is set",
            hint="--region, or AWS_DEFAULT_REGION, or hyperpod_kit.cluster.region in the configuration",
        ) from err
    except boto.InvalidRegionError as err:
        raise Unreachable(f"{what}: {err}", hint="use the form us-east-1") from err
    except (boto.HTTPClientError, boto.ConnectionError, HTTPError, OSError) as err:
        SILENCE.given_up = isinstance(err, boto.ReadTimeoutError)
        raise _unreachable_from_connection_error(what, err) from err
    except boto.ParamValidationError as err:
        raise AwsError(
            what,
            "ParamValidation",
            " ".join(str(err).split()),
            hint="the installed botocore may be too old for the field: pip install -U boto3",
        ) from err
    except boto.BotoCoreError as err:
        raise AwsError(what, type(err).__name__, str(err)) from err
    except (ResponseParserError, *_OF_PARSING) as err:
        cause = f"{type(err).__name__}: {err}"[:LONGEST]
        raise UnreadableAnswer(f"{what}: the response cannot be read: {cause}", hint=HINT) from err


def _error_from_response(what: str, target: str, err: object) -> HyperpodKitError:
    """Return the exception for an error response: a fault of the caller, one of AWS, or a throttled call."""
    response = getattr(err, "response", {})
    error = response.get("Error", {})
    code = str(error.get("Code", "Unknown"))
    message = str(error.get("Message", ""))[:LONGEST].strip() or "no message"
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    if code in THROTTLED:
        return Throttled(f"{what}: AWS is throttling calls ({code}: {message})", hint="wait a minute, then try again")
    if code in EXPIRED:
        return NoCredentials(
            f"{what}: the credentials have expired ({code})", hint="log in again (`aws sso login`), then try again"
        )
    if code in UNKNOWN_KEYS:
        return NoCredentials(f"{what}: AWS does not recognize these credentials ({code}: {message})", hint=_WHO)
    if code in CLOCK:
        return NoCredentials(f"{what}: {code}: {message}", hint="check this machine's clock: timedatectl")
    if 300 <= status < 400 and code.isdigit():
        return UnreadableAnswer(f"{what}: the call was redirected ({status}), which AWS does not do", hint=HINT)
    if status >= 500:
        return Unreachable(f"{what}: AWS reports an internal error ({code}: {message})", hint="try again in a minute")
    if code in NOT_FOUND:
        return AbsentAtAws(what, code, message, hint=_hint_for_error_code(code, target))
    return AwsError(what, code, message, hint=_hint_for_error_code(code, target))


def _unreachable_from_connection_error(what: str, err: Exception) -> Unreachable:
    """Return the Unreachable error for a call that got no answer at all. botocore's own sentence carries the
    whole signed URL, so only its host is in the message."""
    details = getattr(err, "kwargs", {})
    url = urlsplit(str(details.get("endpoint_url", "")))
    endpoint = ""
    if url.netloc:
        endpoint = f"{url.scheme}://{url.netloc}"
    reason = str(details.get("error", ""))
    if any(text in reason for text in _UNRESOLVED):
        return Unreachable(
            f"{what}: the host name {url.hostname} does not resolve",
            hint="check the network and the region's name",
        )
    if type(err).__name__ == "SSLError":
        return Unreachable(
            f"{what}: the certificate of {endpoint} is not trusted: {reason}",
            hint="set AWS_CA_BUNDLE to your own CA certificates",
        )
    problem = "does not answer"
    if "imeout" in type(err).__name__:
        problem = "timed out"
    if endpoint:
        message = f"{what}: {endpoint} {problem}"
    else:
        message = f"{what}: {problem}: {err}"
    return Unreachable(
        message,
        hint="check the network and AWS_ENDPOINT_URL, then try again",
    )


def _hint_for_error_code(code: str, target: str) -> Optional[str]:
    if code in DENIED:
        return f"{_WHO}; that role needs a permission for this call"
    if code == "NoSuchBucket":
        return f"aws s3 mb {'/'.join(target.split('/')[:3])}, or name another bucket in the configuration"
    return _HINTS.get(code)
