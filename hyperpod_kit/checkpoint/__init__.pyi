from hyperpod_kit.checkpoint.manager import Manager as Manager
from hyperpod_kit.checkpoint.repository.policy import Best as Best
from hyperpod_kit.checkpoint.repository.policy import CheckpointFacts as CheckpointFacts
from hyperpod_kit.checkpoint.repository.policy import EverySeconds as EverySeconds
from hyperpod_kit.checkpoint.repository.policy import EverySteps as EverySteps
from hyperpod_kit.checkpoint.repository.policy import Latest as Latest
from hyperpod_kit.checkpoint.repository.policy import Pinned as Pinned
from hyperpod_kit.checkpoint.repository.policy import Policy as Policy
from hyperpod_kit.checkpoint.repository.records.catalog import list_checkpoints as list_checkpoints
from hyperpod_kit.checkpoint.repository.selection import newest_complete as newest_complete
from hyperpod_kit.checkpoint.repository.selection import newest_valid as newest_valid
from hyperpod_kit.checkpoint.restore.loading import load_state as load_state
from hyperpod_kit.checkpoint.restore.results import CheckpointInfo as CheckpointInfo
from hyperpod_kit.checkpoint.restore.results import Fresh as Fresh
from hyperpod_kit.checkpoint.restore.results import Restored as Restored
from hyperpod_kit.checkpoint.saves.handle import Handle as Handle
from hyperpod_kit.checkpoint.state.state import State as State
from hyperpod_kit.checkpoint.transfer.restore_progress import RestoreProgress as RestoreProgress
from hyperpod_kit.checkpoint.weights.weight_sources import ConvertedFrom as ConvertedFrom
from hyperpod_kit.checkpoint.weights.weights import LoadedWeights as LoadedWeights
from hyperpod_kit.checkpoint.weights.weights import load_weights as load_weights

__all__ = [
    "Best",
    "CheckpointFacts",
    "CheckpointInfo",
    "ConvertedFrom",
    "EverySeconds",
    "EverySteps",
    "Fresh",
    "Handle",
    "Latest",
    "LoadedWeights",
    "Manager",
    "Pinned",
    "Policy",
    "RestoreProgress",
    "Restored",
    "State",
    "list_checkpoints",
    "load_state",
    "load_weights",
    "newest_complete",
    "newest_valid",
]
