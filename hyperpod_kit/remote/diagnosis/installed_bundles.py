"""Ask every node which bundle it runs: what `current` is, what its last creation recorded, what became of the files.

One plain shell script, so that a node with any version of the program answers, and one whose program is damaged too.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Callable, Iterator, Mapping, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.remote.connect.fan_out import query_all, reason_to_skip
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Runner
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import clean_one_line

HOME = "/opt/hyperpod-kit"
STATUS = "/var/lib/hyperpod-kit/status.json"
LIMIT = 2000
"""Lines of a list that a node may send."""

SCRIPT = f"""export LC_ALL=C
echo '== current'; readlink {HOME}/current
echo '== status'; cat {STATUS}; echo
cd {HOME}/current/ || exit 0
echo '== identity'; sha256sum SHA256SUMS
echo '== description'; head -c 4096 bundle.json; echo
echo '== sums'; head -n {LIMIT} SHA256SUMS; echo
echo '== damaged'; sha256sum -c --quiet SHA256SUMS 2>/dev/null | head -n {LIMIT}
echo '== files'; find . -name __pycache__ -prune -o ! -type d -print | head -n {LIMIT}
echo '== end'"""

_SECTION = re.compile(r"^== (current|status|identity|description|sums|damaged|files|end)\n", re.MULTILINE)
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_FORMAT = re.compile(r'"format": "(hpk-bundle/[0-9]{1,6})"')
_FAILED = re.compile(r"(.+): FAILED( open or read)?")


@dataclass(frozen=True)
class NodeBundle:
    """What one node said.

    current: the bundle that is installed, "" for none; recorded: the bundle of its last creation, with its end in Unix
    seconds and whether it succeeded; format: of the installed bundle, as its bundle.json says, "" where that cannot be
    read; files: place -> hex SHA-256 as the installed SHA256SUMS has it; damaged: place and
    what is wrong with it; error: why there is no answer, empty when there is one.
    """

    target: NodeTarget
    current: str = ""
    recorded: str = ""
    created_ok: bool = False
    finished_at: float = 0.0
    format: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    error: str = ""
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON form, without the list of files."""
        data = {**asdict(self.target), **{key: value for key, value in asdict(self).items() if key != "target"}}
        return {key: value for key, value in data.items() if key != "files"}


def query_bundles(
    targets: Sequence[NodeTarget],
    connect: Callable[[NodeTarget], Runner],
    *,
    timeout: float = 60.0,
    progress: Callable[[NodeBundle], None] = lambda bundle: None,
) -> list[NodeBundle]:
    """Query the bundle of each target, in the order of the targets. `timeout`: seconds for each node."""
    return query_all(targets, lambda target: _query_node(target, connect, timeout), progress)


def _query_node(target: NodeTarget, connect: Callable[[NodeTarget], Runner], timeout: float) -> NodeBundle:
    skipped = reason_to_skip(target)
    if skipped:
        return NodeBundle(target, error=skipped.error, hint=skipped.hint)
    try:
        done = connect(target).run(["/bin/sh", "-c", SCRIPT], timeout=timeout, check=False)
        return parse_output(target, done.stdout)
    except HyperpodKitError as err:
        return NodeBundle(target, error=err.message, hint=err.hint or "")
    except Exception as err:  # whatever one node says, the others are told of
        return NodeBundle(target, error=f"its answer cannot be read: {type(err).__name__}: {clean_one_line(err)}")


def parse_output(target: NodeTarget, text: str) -> NodeBundle:
    """Parse what the script printed, after any login banner."""
    parts = _SECTION.split(text)
    sections = dict(zip(parts[1::2], parts[2::2]))
    if not {"current", "status"} <= set(sections):
        return NodeBundle(target, error=f"its answer does not describe a bundle: {last_line_or_nothing_word(text)}")
    try:
        if sections["status"].strip():
            status = parse_json_object(sections["status"])
        else:
            status = {}
    except ValueError as err:
        # Of a node whose creation never ended there is no record; half of one is worth a word.
        return NodeBundle(
            target,
            current=clean_one_line(sections["current"]),
            error=f"its status.json cannot be read: {clean_one_line(err)}",
        )
    finished = status.get("finished_at")
    described = _FORMAT.search(sections.get("description", ""))
    current = clean_one_line(sections["current"])
    files = {match[2]: match[1] for match in map(_SUM.fullmatch, sections.get("sums", "").splitlines()) if match}
    bundle_format = ""
    if described:
        bundle_format = described[1]
    if current:
        damaged = tuple(islice(_find_damage(current, sections, files), LIMIT))
    else:
        damaged = ()
    return NodeBundle(
        target,
        current=current,
        recorded=clean_one_line(status.get("bundle_id") or ""),
        created_ok=status.get("ok") is True,
        finished_at=_timestamp_or_zero(finished),
        format=bundle_format,
        files=files,
        damaged=damaged,
    )


def _timestamp_or_zero(value: Any) -> float:
    """Return a timestamp of the node's own clock; 0.0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        return 0.0
    return float(value)


def _find_damage(current: str, sections: Mapping[str, str], files: Mapping[str, str]) -> Iterator[str]:
    """Yield `path: what is wrong` for every file that is not the bundle's."""
    if not {"end", "identity", "damaged", "files"} <= set(sections):
        yield f"{HOME}/{current}: missing"
        return
    # The name of a bundle is made of this file: it vouches for all others.
    if sections["identity"][:16] != current:
        yield "SHA256SUMS: damaged"
    present = {line[2:] for line in sections["files"].splitlines()}
    for match in map(_FAILED.fullmatch, sections["damaged"].splitlines()):
        if match:
            problem = "missing"
            if match[1] in present:
                problem = "damaged"
            yield f"{match[1]}: {problem}"
    for path in sorted(present - {*files, "SHA256SUMS", "bundle.json"}):
        yield f"{path}: not part of this bundle"
