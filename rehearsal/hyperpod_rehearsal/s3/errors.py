"""Errors as S3 answers them."""

from __future__ import annotations


class S3Error(Exception):
    """An S3 error answer: HTTP status, error code of the S3 API, and a sentence."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(f"{status} {code}: {message or code}")
        self.status = status
        self.code = code
        self.message = message or code


def no_such_bucket(name: str) -> S3Error:
    """The answer for a bucket that does not exist."""
    return S3Error(404, "NoSuchBucket", f"The specified bucket does not exist: {name}")


def no_such_key(key: str) -> S3Error:
    """The answer for an object that does not exist."""
    return S3Error(404, "NoSuchKey", f"The specified key does not exist: {key}")


def precondition_failed(header: str) -> S3Error:
    """The answer when `header` (If-Match, If-None-Match, ...) does not hold."""
    return S3Error(
        412, "PreconditionFailed", f"At least one of the pre-conditions you specified did not hold: {header}"
    )
