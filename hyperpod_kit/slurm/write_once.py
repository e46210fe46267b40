"""What a process of a job leaves for `job run`: one JSON object in a file that is written once.

One write to a new file and no rename, so that it works on any file system.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any, Dict, Iterator, Mapping, Tuple

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import by_descriptor, files, parse

MOST = 100
"""Records of one name; what comes after them is not written."""
_LONGEST = 1 << 16
_NAME = re.compile(r"(.+?)(?:\.(\d{1,3}))?\.json")


def write_new_record(folder: str, stem: str, value: Mapping[str, Any]) -> None:
    """Write the object to a new file `<stem>.json`; an earlier one stays, and the new one is `<stem>.1.json`
    then, and so on: HyperPod starts a step again under the name of one attempt. After MOST files nothing is
    written.

    Raises FileNotFoundError where the job's state is gone, OSError.

    Args:
        folder: `<state>/<kind>/<attempt>`. The state directory is never made: a checkpoint root that was renamed
            away would be there again, empty.
    """
    folder = by_descriptor.resolve_parent(folder)
    for directory in (os.path.dirname(folder), folder):
        by_descriptor.make_directories(directory, 0o750, parents=False)
    data = json.dumps(value).encode()
    for number in range(MOST):
        if number == 0:
            name = f"{stem}.json"
        else:
            name = f"{stem}.{number}.json"
        try:
            fd = by_descriptor.open_own_or_root_file(
                os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640
            )
        except FileExistsError:
            continue
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        return


def read_all_records(folder: str) -> Iterator[Tuple[str, int, Dict[str, Any]]]:
    """Yield (stem, number, object) of each record in the folder, in no order. What is not whole, or no file,
    is skipped.

    Raises OSError when the folder is there and cannot be read.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            with contextlib.suppress(ValueError, FileNotFoundError, Untrusted):
                value = parse.parse_json_object(
                    files.read_small_regular_file(os.path.join(folder, name), most=_LONGEST)
                )
                yield match.group(1), int(match.group(2) or 0), value
