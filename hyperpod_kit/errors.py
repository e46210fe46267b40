"""Every exception of hyperpod-kit, drawn once.

HyperpodKitError(message, hint=...)                    exit 1
|- UsageError                                          exit 2   the command line is wrong by itself
|- Absent                                              exit 3   what it names is not there
|  `- MissingExtra            a package that it needs is not installed
|- Unreachable                                         exit 3   nothing answered
|  |- NoCredentials           nobody to sign as, or credentials that have expired: asking again does not help
|  |- Throttled               AWS turned the call away: later it will do
|  `- UnreadableAnswer        something answered, and not as AWS does: nothing is known
|- ConfigError(findings=...)                           exit 1
|- BundleError - BundleIntegrityError(path, expected, actual)
|- AwsError(operation, code)                           exit 1   (Unreachable when the endpoint does not answer)
|  `- AbsentAtAws             AWS has nothing of that name: exit 3, an Absent too
|- ClusterError - ClusterFailed - WaitTimeout(exit 3)
|- RunError(argv, returncode, stdout, stderr) - RunTimeout(exit 3)
|- NodeError - UnknownRole - StepFailed - MountFailed
|  `- NoBundle                this machine is no node of a cluster: exit 3, an Absent too
|- JobError - GaveUp(exit 86)
|  |- NotInAJob               no job of Slurm's is around it: exit 3, an Absent too
|  `- NoRecords               no job has ever kept records of the root: exit 3, an Absent too
|- RehearsalError
|  `- NotUp                   no rehearsal of that name is up: exit 3, an Absent too
|- DataError                                           exit 1   training data cannot be used as asked
|  |- ChangedFile             a file is not the one that was indexed
|  |- BadRecord
|  |- NoData                  files, an index or a ledger are not there: exit 3, an Absent too
|  `- DataUnavailable         exit 74   storage does not give the bytes, after everything was tried
|- Untrusted                   a file, directory, word or line of another is not what it has to be
|  `- UntrustedPlace           what lies at a path, or on the way there, is another's; an OSError, too
`- CheckpointError
   |- NoCheckpoint            nothing was ever committed: start from step 0
   |- NoSuchCheckpoint        no checkpoint has the name that was given: exit 3, an Absent too
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
from typing import Any, Optional, Sequence, Tuple, Type

from hyperpod_kit.exit_codes import ExitCode


class HyperpodKitError(Exception):
    """Base of all errors that a user is meant to read without a stack trace."""

    exit_code: int = ExitCode.PROBLEM

    def __init__(self, message: str, *, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> Tuple[Any, ...]:
        """As it is, whatever its constructor takes: torch.distributed.checkpoint and multiprocessing send errors from
        one process to another."""
        return _rebuild_error, (type(self), self.args), dict(self.__dict__)


def _rebuild_error(kind: Type[HyperpodKitError], args: Tuple[Any, ...]) -> HyperpodKitError:
    error = kind.__new__(kind, *args)
    error.args = args  # which those that are an OSError too set in their constructor
    return error


class UsageError(HyperpodKitError):
    """The command line is wrong by itself, whatever is there."""

    exit_code = ExitCode.USAGE


class Absent(HyperpodKitError):
    """What the command line names is not there, so nothing is known of it."""

    exit_code = ExitCode.ABSENT


class MissingExtra(Absent):
    """A package that the command needs is not installed."""


class Unreachable(HyperpodKitError):
    """Nothing answered, so nothing could be checked."""

    exit_code = ExitCode.ABSENT


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


class AbsentAtAws(Absent, AwsError):
    """AWS has nothing of the name that it was asked about."""


class ClusterError(HyperpodKitError):
    """A cluster is not in the state that the command needs."""


class ClusterFailed(ClusterError):
    """The cluster reached `Failed`; the message carries its FailureMessage."""


class WaitTimeout(ClusterError):
    """The cluster did not get there in time."""

    exit_code = ExitCode.ABSENT


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

    exit_code = ExitCode.ABSENT


class NodeError(HyperpodKitError):
    """Something on a node is not as it must be."""


class UnknownRole(NodeError):
    """This node is in no instance group of the resource config."""


class NoBundle(Absent, NodeError):
    """No bundle is installed on this machine: it is no node of a cluster."""


class StepFailed(NodeError):
    """A step of the node's creation failed and it was a required one."""


class MountFailed(NodeError):
    """A mount could not be made or is not healthy."""


class JobError(HyperpodKitError):
    """The job cannot be run as asked."""


class NotInAJob(Absent, JobError):
    """The command works inside of a job of Slurm's, and runs outside of one."""


class NoRecords(Absent, JobError):
    """No job has ever kept records of the root."""


class GaveUp(JobError):
    """The retry budget is spent: the job is held and wants a person."""

    exit_code = ExitCode.GAVE_UP


class RehearsalError(HyperpodKitError):
    """The rehearsal cluster cannot do that here."""


class NotUp(Absent, RehearsalError):
    """No rehearsal of the name is up."""


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


class NoData(Absent, DataError):
    """Files of training data, an index or a ledger are not there."""


class DataUnavailable(DataError):
    """Storage does not give up bytes of the training data, and everything was tried. The job may be run again."""

    exit_code = ExitCode.NO_STORAGE
    ADVICE = "hyperpod-kit validate-mounts, on the machine that the cluster is made from"


class CheckpointError(HyperpodKitError):
    """Base of everything that can go wrong with a checkpoint."""


class NoCheckpoint(CheckpointError):
    """Nothing was ever committed under this root."""


class NoSuchCheckpoint(Absent, CheckpointError):
    """No checkpoint under the root has the name that was given."""


class NoValidCheckpoint(CheckpointError):
    """Something was committed, but no candidate is there or can be trusted. `reasons`: (attempt, why) each."""

    root: str = ""
    reasons: Tuple[Tuple[str, str], ...] = ()

    def __init__(self, root: str, reasons: Sequence[tuple[str, str]], *, hint: Optional[str] = None) -> None:
        lines = "; ".join(f"{name}: {reason}" for name, reason in reasons)
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

    exit_code = ExitCode.ABSENT

    def __init__(self, algorithm: str, reason: str) -> None:
        super().__init__(
            f"cannot verify digests of kind {algorithm!r}: {reason}",
            hint="install libxxhash0 (0.8 or later)" if algorithm == "xxh3" else None,
        )
        self.algorithm = algorithm


class StorageUnreadable(CheckpointError):
    """Storage has the newest checkpoint and does not give it up (an I/O error). That says nothing about its bytes, so
    nobody goes back to an older one without being told to."""

    exit_code = ExitCode.ABSENT

    def __init__(self, attempt: str, reason: str, *, hint: str) -> None:
        super().__init__(f"{attempt}: {reason}: it may be good, so nothing older was taken in its place", hint=hint)
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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; the name of its class where it has none, as a MemoryError."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
