"""Every exception of hyperpod-kit, drawn once.

HyperpodKitError(message, hint=...)                    exit 1
|- UsageError                                          exit 2   the command cannot mean that
|- Unreachable                                         exit 3   could not check: nothing answered
|  |- NoCredentials           nobody to sign as, or credentials that have expired: asking again does not help
|  |- Throttled               AWS turned the call away: later it will do
|  `- UnreadableAnswer        something answered, and not as AWS does: nothing is known
|- ConfigError(findings=...)                           exit 1
|- BundleError - BundleIntegrityError(path, expected, actual)
|- AwsError(operation, code)                           exit 1   (Unreachable when the endpoint does not answer)
|- ClusterError - ClusterFailed - WaitTimeout(exit 3)
|- RunError(argv, returncode, stdout, stderr) - RunTimeout(exit 3)
|- NodeError - UnknownRole - StepFailed - MountFailed
|- JobError - GaveUp(exit 86)
|- RehearsalError
|- DataError                                           exit 1   training data cannot be used as asked
|  |- ChangedFile             a file is not the one that was indexed
|  |- BadRecord
|  `- DataUnavailable         exit 74   storage does not give the bytes, after everything was tried
|- Untrusted                   a file, directory, word or line of another is not what it has to be
|  `- UntrustedPlace           what lies at a path, or on the way there, is another's; an OSError, too
`- CheckpointError
   |- NoCheckpoint            nothing was ever committed: start from step 0
   |- NoValidCheckpoint       something was committed, and is lost or damaged: never start from scratch
   |- DigestMismatch(file, expected, actual)
   |- DigestUnavailable(algorithm)   exit 3   this interpreter cannot compute it, so nothing was checked
   |- StorageUnreadable(attempt)     exit 3   storage answered with an I/O error: it may be good, and readable later
   |- RunIsOwned              another live run writes to this root
   |- StateNotSerializable(path)
   `- NotEnoughSharedMemory

A message says what failed, on what, expected against found; `hint` is the next command to type.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
from typing import Optional, Sequence, Tuple


class HyperpodKitError(Exception):
    """Base of all errors that a user is meant to read without a stack trace."""

    exit_code = 1

    def __init__(self, message: str, *, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HyperpodKitError):
    """The command line or its input cannot mean what it says."""

    exit_code = 2


class Unreachable(HyperpodKitError):
    """Nothing answered, so nothing could be checked."""

    exit_code = 3


class NoCredentials(Unreachable):
    """AWS was not asked, or did not listen: there are no credentials, or they are not good any more."""


class Throttled(Unreachable):
    """AWS turned the call away because there were too many of them; nothing was done."""


class UnreadableAnswer(Unreachable):
    """An answer is cut off, malformed, without end or another's; what it says of the cluster is not believed."""


class ConfigError(HyperpodKitError):
    """The configuration is wrong. `findings` holds every problem, one line each."""

    def __init__(self, message: str, *, findings: Sequence[str] = (), hint: Optional[str] = None) -> None:
        super().__init__(message, hint=hint)
        self.findings = tuple(findings)


class BundleError(HyperpodKitError):
    """The lifecycle bundle cannot be rendered, uploaded or trusted."""


class BundleIntegrityError(BundleError):
    """A file of the bundle is not what its manifest says."""

    def __init__(self, path: str, expected: str, actual: str) -> None:
        super().__init__(f"{path} is damaged: expected sha256 {expected}, found {actual}", hint="hyperpod-kit upload")
        self.path = path


class AwsError(HyperpodKitError):
    """An AWS call was answered with an error."""

    def __init__(self, operation: str, code: str, message: str, *, hint: Optional[str] = None) -> None:
        super().__init__(f"{operation}: {code}: {message}", hint=hint)
        self.operation = operation
        self.code = code


class ClusterError(HyperpodKitError):
    """A cluster is not in the state that the command needs."""


class ClusterFailed(ClusterError):
    """The cluster reached `Failed`; the message carries its FailureMessage."""


class WaitTimeout(ClusterError):
    """The cluster did not get there in time."""

    exit_code = 3


class RunError(HyperpodKitError):
    """A command ended with a code other than 0."""

    def __init__(
        self,
        argv: Sequence[str],
        returncode: int,
        stdout: str = "",
        stderr: str = "",
        *,
        target: str = "",
        hint: Optional[str] = None,
    ) -> None:
        where = f" on {target}" if target else ""
        tail = (stderr or stdout).strip().splitlines()[-1:] or [""]
        super().__init__(f"`{' '.join(argv)}`{where} exited {returncode}: {tail[0]}", hint=hint)
        self.argv = tuple(argv)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


class RunTimeout(RunError):
    """A command did not end within its deadline and was killed."""

    exit_code = 3


class NodeError(HyperpodKitError):
    """Something on a node is not as it must be."""


class UnknownRole(NodeError):
    """This node is in no instance group of the resource config."""


class StepFailed(NodeError):
    """A step of the node's creation failed and it was a required one."""


class MountFailed(NodeError):
    """A mount could not be made or is not healthy."""


class JobError(HyperpodKitError):
    """The job cannot be run as asked."""


class GaveUp(JobError):
    """The retry budget is spent: the job is held and wants a person."""

    exit_code = 86


class RehearsalError(HyperpodKitError):
    """The rehearsal cluster cannot do that here."""


class Untrusted(HyperpodKitError):
    """What another may have written is not what it has to be: of another type, of another user, too large."""


class UntrustedPlace(Untrusted, OSError):
    """What lies at a path, or on the way there, is another's: to whom the file system is what it may be, one of its
    refusals."""

    def __init__(self, message: str, *, hint: Optional[str] = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno.EACCES
        self.strerror = message

    def __str__(self) -> str:
        return self.message


class DataError(HyperpodKitError):
    """Training data, or its index, cannot be used as asked. Made of one message, as what comes out of another process
    has to be; `ADVICE` is the hint where none is given."""

    ADVICE: Optional[str] = None

    def __init__(self, message: str, *, hint: Optional[str] = None) -> None:
        super().__init__(message, hint=hint or self.ADVICE)


class ChangedFile(DataError):
    """A file is not the one that was indexed."""

    ADVICE = "hyperpod-kit data index, with the words of the first time: it reads what has changed"


class BadRecord(DataError):
    """A sample cannot be decoded."""

    ADVICE = "hyperpod-kit data index SRC --check --on-bad skip leaves such records out, and counts them"


class DataUnavailable(DataError):
    """Storage does not give up bytes of the training data, and everything was tried. The job may be run again."""

    exit_code = 74
    ADVICE = "hyperpod-kit validate-mounts, on the machine that the cluster is made from"


class CheckpointError(HyperpodKitError):
    """Base of everything that can go wrong with a checkpoint."""


class NoCheckpoint(CheckpointError):
    """Nothing was ever committed under this root."""


class NoValidCheckpoint(CheckpointError):
    """Something was committed, but no candidate is there or can be trusted. `reasons`: (attempt, why) each."""

    root: str = ""
    reasons: Tuple[Tuple[str, str], ...] = ()

    def __init__(self, root: str, reasons: Sequence[tuple[str, str]], *, hint: Optional[str] = None) -> None:
        lines = "; ".join(f"{name}: {why}" for name, why in reasons)
        super().__init__(
            f"no valid checkpoint under {root}: {lines}", hint=hint or f"hyperpod-kit checkpoint verify {root}"
        )
        self.root = root
        self.reasons = tuple(reasons)


class DigestMismatch(CheckpointError):
    """Bytes are not the bytes that were sealed."""

    def __init__(self, file: str, expected: str, actual: str) -> None:
        super().__init__(f"{file}: expected {expected}, found {actual}")
        self.file = file
        self.expected = expected
        self.actual = actual


class DigestUnavailable(CheckpointError):
    """A digest algorithm cannot be computed here. That says nothing about the checkpoint."""

    exit_code = 3

    def __init__(self, algorithm: str, why: str) -> None:
        super().__init__(
            f"cannot verify digests of kind {algorithm!r}: {why}",
            hint="install libxxhash0 (0.8 or later)" if algorithm == "xxh3" else None,
        )
        self.algorithm = algorithm


class StorageUnreadable(CheckpointError):
    """Storage has the newest checkpoint and does not give it up (an I/O error). That says nothing about its bytes, so
    nobody goes back to an older one without being told to."""

    exit_code = 3

    def __init__(self, attempt: str, why: str, *, hint: str) -> None:
        super().__init__(f"{attempt}: {why}: it may be good, so nothing older was taken in its place", hint=hint)
        self.attempt = attempt


class RunIsOwned(CheckpointError):
    """Another live run writes to this root."""


class StateNotSerializable(CheckpointError):
    """A leaf of the state is neither a tensor that can be saved nor typed JSON. `path` names it.

    The hint stands in the text: a training program ends with a traceback, which shows nothing else.
    """

    def __init__(self, path: str, kind: str, *, hint: Optional[str] = None) -> None:
        hint = hint or f"take {path} out of the State, or save the tensors, numbers and strings that it is made from"
        super().__init__(f"state at {path} is a {kind}, which a checkpoint cannot hold", hint=hint)
        self.path = path

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"


class NotEnoughSharedMemory(CheckpointError):
    """The slots do not fit into shared memory."""
