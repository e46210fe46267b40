"""Proves a checkpoint of another framework before an attempt: the nodes that are about to load it read it, all at once.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.foreign import proving
from hyperpod_kit.job.foreign.candidate import PROOFS, ForeignCandidate
from hyperpod_kit.job.foreign.proven import FileProof, ProvenFiles
from hyperpod_kit.job.resume import proving_part
from hyperpod_kit.job.step import bare_step
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.text import counted

WORTH_A_STEP = 4 << 30
"""Bytes below which this process reads them sooner than a step on other nodes could be started and ended."""

SILENCE = 60.0
"""Seconds without a sign of life from a task, after which what is left is read here."""

_LONGEST = 1 << 16


class ProvingStep:
    """Proves checkpoints of other frameworks, in a step where that is worth it.

    `nodes`: those on which the step may run; the supervisor sets them before each choice.
    """

    def __init__(self, options: RunOptions, env: Mapping[str, str], report: JobReport) -> None:
        self._options = options
        self._env = env
        self._report = report
        self._proven = ProvenFiles(options.root, options.state)
        self.nodes: Sequence[str] = ()

    def prove(self, candidate: ForeignCandidate) -> str:
        """Return how far the candidate is proven, of PROOFS. Raises CheckpointError, OSError."""
        return proving.read_unproven_files_and_weakest_proof(
            self._options.root, candidate, self._proven, self._proofs_from_nodes_if_worth_it
        )

    def _proofs_from_nodes_if_worth_it(
        self, checkpoint_name: str, unproven_file_sizes: Mapping[str, int]
    ) -> Iterator[FileProof]:
        size = sum(unproven_file_sizes.values())
        tasks = min(len(self.nodes), len(unproven_file_sizes))
        if tasks < 2 or size < WORTH_A_STEP:
            return
        nodes = self.nodes[:tasks]
        self._report(
            "proving",
            f"{checkpoint_name} is proven by {counted(tasks, 'node')}: {counted(len(unproven_file_sizes), 'file')}, "
            f"{size / 1e9:.1f} GB",
            attempt=checkpoint_name,
            files=len(unproven_file_sizes),
            bytes=size,
            nodes=list(nodes),
        )
        start_time, proof_count = time.monotonic(), 0
        for file_proof in self._receive_proofs_from_step(checkpoint_name, nodes):
            # A task sees the root as its node does; a file that was not given to it, or has another length here, is
            # read here.
            if unproven_file_sizes.get(file_proof.file) == file_proof.state.size and file_proof.proof in ("", *PROOFS):
                proof_count += 1
                yield file_proof
        summary = f"{proof_count} of {len(unproven_file_sizes)} files in {time.monotonic() - start_time:.1f} s"
        if proof_count != len(unproven_file_sizes):
            summary += "; this node reads the others"
        self._report(
            "proven",
            summary,
            attempt=checkpoint_name,
            files=proof_count,
            seconds=round(time.monotonic() - start_time, 1),
        )

    def _receive_proofs_from_step(self, checkpoint_name: str, nodes: Sequence[str]) -> Iterator[FileProof]:
        options = self._options
        try:
            process = bare_step.start_kit_program_on_nodes(
                options.srun, "prove", nodes, ("prove", "--part", options.root, checkpoint_name), self._env
            )
        except OSError as err:
            self._report("proving", f"cannot start {options.srun}: {err.strerror}")
            return
        lines: queue.Queue[Optional[bytes]] = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        last_beat_by_task = {task: time.monotonic() for task in range(len(nodes))}
        try:
            while last_beat_by_task:
                line = _get_line_or_empty(lines)
                if line is None:
                    return
                message = _parse_message_or_none(line)
                if message is None:
                    continue
                task = message.get("task")
                if type(task) is int and task in last_beat_by_task:
                    last_beat_by_task[task] = time.monotonic()
                    file_proof = proving_part.parse_file_proof_or_none(message)
                    if file_proof:
                        yield file_proof
                    if message.get("over"):
                        del last_beat_by_task[task]
                if any(time.monotonic() - at > SILENCE for at in last_beat_by_task.values()):
                    return
        finally:
            bare_step.end(process)


def _get_line_or_empty(lines: queue.Queue[Optional[bytes]]) -> Optional[bytes]:
    """Return the next line, None after the last one; an empty one when there is none within a second."""
    try:
        return lines.get(timeout=1.0)
    except queue.Empty:
        return b""


def _parse_message_or_none(line: bytes) -> Optional[Dict[str, Any]]:
    """Return the message of a task, {} for an empty line; None for the output of a Prolog or of a library."""
    if not line.strip():
        return {}
    try:
        return parse.parse_json_object(line, _LONGEST)
    except ValueError:
        return None


def _read(process: subprocess.Popen[bytes], lines: queue.Queue[Optional[bytes]]) -> None:
    assert process.stdout is not None
    for line in iter(lambda: process.stdout.readline(_LONGEST), b""):  # type: ignore[union-attr]
        lines.put(line)
    lines.put(None)
