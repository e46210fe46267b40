"""A limit of a Lustre project: `lfs project` makes a directory one, `lfs setquota` limits it."""

from __future__ import annotations

import os
import re

from hyperpod_kit.run import Runner
from hyperpod_kit.storage.quota.limits import QuotaError, QuotaLimits, QuotaUsed

_NUMBER = re.compile(r"\[?([0-9]{1,18})\]?(\*?)")
_PROJECT = re.compile(r"^\s*([0-9]{1,10})\s+([P-])\s")
INCOMPLETE = "some of its servers do not answer, so the sum is incomplete"


class Lustre:
    """`lfs`, of the Lustre client, as root. `project`: of a directory that has none; its owner's uid otherwise."""

    name = "Lustre"
    counts_files = True

    def __init__(self, runner: Runner, mount: str, project: int | None = None) -> None:
        self._runner = runner
        self._mount = mount
        self._project = project

    def read_project_id(self, directory: str) -> int:
        """Read a directory's project, 0 when it has none. Raises QuotaError."""
        output = self._runner.run(["lfs", "project", "-d", directory]).stdout
        match = _PROJECT.match(output)
        if match is None:
            raise QuotaError(
                f"{directory}: `lfs project -d` printed {output.strip()[:200]!r}, expected a number and a flag"
            )
        return int(match.group(1))

    def read_usage(self, directory: str) -> QuotaUsed:
        """See QuotaBackend."""
        project = self.read_project_id(directory)
        if not project:
            hint = f"hyperpod-kit storage quota set {directory} --bytes SIZE"
            raise QuotaError(f"{directory} belongs to no project, so its contents are not counted", hint=hint)
        return parse_quota(self._runner.run(["lfs", "quota", "-p", str(project), self._mount]).stdout, directory)

    def build_limit_commands(self, directory: str, limits: QuotaLimits, grace: int) -> list[list[str]]:
        """See QuotaBackend."""
        owner = os.stat(directory).st_uid
        current_project = self.read_project_id(directory)
        project = self._project or current_project or owner
        if not project:
            raise QuotaError(
                f"{directory} belongs to root, whose uid cannot be a project number", hint="--project NUMBER"
            )
        if not current_project and not self._project:
            self._require_unused_project(project, directory)
        soft, hard = (f"{-(-count // 1024)}K" for count in (limits.soft_bytes, limits.hard_bytes))
        sizes = ["-b", soft, "-B", hard, "-i", str(limits.soft_files), "-I", str(limits.hard_files)]
        argvs = [["lfs", "setquota", "-p", str(project), *sizes, self._mount]]
        if current_project != project:
            # Only where it is new: root walks a tree by its paths there, which its owner may change meanwhile.
            argvs.insert(0, ["lfs", "project", "-p", str(project), "-s", "-r", directory])
        if grace and (limits.soft_bytes or limits.soft_files):
            times = ["--block-grace", str(grace), "--inode-grace", str(grace)]
            argvs.append(["lfs", "setquota", "-t", "-p", *times, self._mount])
        return argvs

    def _require_unused_project(self, project: int, directory: str) -> None:
        """Raise QuotaError if another directory is this project: both would have one limit."""
        used = parse_quota(self._runner.run(["lfs", "quota", "-p", str(project), self._mount]).stdout, directory)
        if used.bytes or used.files or used.limits != QuotaLimits():
            raise QuotaError(
                f"{directory} belongs to uid {project}, and project {project} already counts another directory: "
                "the two would share one limit",
                hint="--project NUMBER, a number that no directory uses",
            )


def parse_quota(text: str, directory: str) -> QuotaUsed:
    """Parse what `lfs quota -p NUMBER MOUNT` prints. A long mount stands on a line of its own. Raises QuotaError."""
    lines = text.splitlines()
    headers = [number for number, line in enumerate(lines) if line.split()[:2] == ["Filesystem", "kbytes"]]
    if not headers:
        raise QuotaError(f"{directory}: `lfs quota` printed {text.strip()[:200]!r}, expected a table")
    fields = " ".join(lines[headers[0] + 1 :]).split()
    # The mount's name may have spaces; the first number and the seven words behind it are the row.
    for start in range(1, len(fields) - 6):
        row = fields[start : start + 8]
        if len(row) == 8 and all(_NUMBER.fullmatch(row[at]) for at in (0, 1, 2, 4, 5, 6)):
            break
    else:
        raise QuotaError(f"{directory}: `lfs quota` printed {' '.join(fields)[:200]!r}, expected eight columns")
    if any("[" in row[at] for at in (0, 4)):
        raise QuotaError(f"{directory}: {INCOMPLETE}: `lfs quota` printed {' '.join(row)}", hint="lfs check servers")
    number = {at: int(_strip_quota_marks(row[at])) for at in (0, 1, 2, 4, 5, 6)}
    grace = ", ".join(
        f"{label}: {row[at]}" for label, at in (("bytes", 3), ("files", 7)) if row[at] not in ("-", "none")
    )
    limits = QuotaLimits(number[1] * 1024, number[2] * 1024, number[5], number[6])
    return QuotaUsed(directory, number[0] * 1024, number[4], limits, grace)


def _strip_quota_marks(word: str) -> str:
    match = _NUMBER.fullmatch(word)
    assert match is not None
    return match.group(1)
