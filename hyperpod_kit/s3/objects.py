"""A listing of any length, and ranges of one version of an object, by either client.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Dict, Iterator


def iter_listing_pages(
    client: Any, bucket: str, prefix: str, *, delimiter: str = "", start_after: str = ""
) -> Iterator[Dict[str, Any]]:
    """Yield the pages of the listing of names that begin with `prefix`, up to the next `delimiter` in them. Raise what
    the client raises."""
    arguments = {"Bucket": bucket, "Prefix": prefix}
    if delimiter:
        arguments["Delimiter"] = delimiter
    position: Dict[str, str] = {}
    if start_after:
        position["StartAfter"] = start_after
    while True:
        page = client.list_objects_v2(**arguments, **position)
        yield page
        if not page.get("IsTruncated"):
            return
        position = {"ContinuationToken": page["NextContinuationToken"]}


class ObjectVersion:
    """The version of an object that was there when this was made. Raises what the client raises."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self._client = client
        self._location = {"Bucket": bucket, "Key": key}
        head = client.head_object(**self._location)
        self.size = int(head["ContentLength"])
        self.etag: str = head["ETag"]
        self.last_modified: datetime = head["LastModified"]

    def open_range(self, offset: int, end: int) -> Any:
        """Return the body of the bytes from `offset` to before `end`: it has `read`, and is given back by `with`."""
        response = self._client.get_object(Range=f"bytes={offset}-{end - 1}", IfMatch=self.etag, **self._location)
        return response["Body"]
