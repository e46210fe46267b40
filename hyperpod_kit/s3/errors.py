"""What S3 answers, as the operating system would have said it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
from typing import Optional

_ERRNO = {
    "404": errno.ENOENT,
    "NoSuchKey": errno.ENOENT,
    "NotFound": errno.ENOENT,
    "NoSuchBucket": errno.ENOENT,
    "403": errno.EACCES,
    "AccessDenied": errno.EACCES,
    "InvalidAccessKeyId": errno.EACCES,
    "SignatureDoesNotMatch": errno.EACCES,
    "ExpiredToken": errno.EACCES,
    "PreconditionFailed": errno.EEXIST,
    "412": errno.EEXIST,
    "ConditionalRequestConflict": errno.EEXIST,
    "SlowDown": errno.EAGAIN,
    "503": errno.EAGAIN,
    "ServiceUnavailable": errno.EAGAIN,
    "QuotaExceeded": errno.EDQUOT,
}


class S3NotConfigured(ValueError):
    """What a client needs to know is nowhere, or is not as it has to be. `hint`: see HyperpodKitError."""

    def __init__(self, message: str, *, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.hint = hint


def code_of(err: BaseException) -> str:
    """Return the service's error code; "" when the service did not answer."""
    response = getattr(err, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return ""


def was_retried(err: BaseException) -> bool:
    """Return whether the request had been sent before this failure."""
    response = getattr(err, "response", None)
    return isinstance(response, dict) and int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) > 0


def to_os_error(err: BaseException, url: str, verb: str = "read") -> OSError:
    """Return `err` as OSError (FileNotFoundError, FileExistsError, PermissionError, ...); a bug of the kit is
    raised as it is.

    `verb`: what could not be done to `url`: read, written, deleted.
    """
    if isinstance(err, OSError) and err.filename is not None:
        error = err
    else:
        error = _as_os_error(err, url)
    error.__dict__.setdefault("verb", verb)
    return error


def _as_os_error(err: BaseException, url: str) -> OSError:
    code = code_of(err)
    if code:
        number = _ERRNO.get(code, errno.EIO)
        if err.args:
            message = str(err.args[0])
        else:
            message = code
        return OSError(number, f"{code}: {message}", url)
    kind = type(err).__name__
    if isinstance(err, PermissionError):
        return OSError(errno.EACCES, str(err), url)
    if kind in ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"):
        return OSError(errno.EACCES, str(err), url)
    if type(err).__module__.partition(".")[0] in ("botocore", "urllib3") or isinstance(err, OSError):
        if "Timeout" in kind:
            number = errno.ETIMEDOUT
        else:
            number = errno.EIO
        return OSError(number, f"{kind}: {err}", url)
    raise err
