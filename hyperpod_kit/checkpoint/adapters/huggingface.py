"""The Hugging Face Trainer with this engine under it: `class MyTrainer(CheckpointedTraining, SFTTrainer)`.

The Trainer keeps its loop, its schedule of saves and its own files' words: what it would have read from
`trainer_state.json` it reads from a file of that name, in a directory that lives as long as `train`. What it would have
written is one save of ours: model, optimizer, scheduler, gradient scaler, generators, and that JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import warnings
from collections.abc import Collection, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from accelerate.data_loader import DataLoaderShard
from transformers import Trainer, TrainerCallback, trainer_utils
from transformers.trainer_callback import ExportableState

from hyperpod_kit.checkpoint.adapters.roots import RootPath, resolve_root
from hyperpod_kit.checkpoint.convert.files.weights_file import LAYOUT
from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.repository import policy, selection
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.restore.loading import load_state
from hyperpod_kit.checkpoint.restore.results import Restored
from hyperpod_kit.checkpoint.saves.handle import Handle
from hyperpod_kit.checkpoint.saves.preemption_signal import REQUEUE_EXIT_CODE
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.errors import CheckpointError

_STATE = "trainer_state.json"


class CheckpointedTraining:
    """Put before a Trainer of any kind; CheckpointedTrainer is this before Trainer.

    `checkpoint_root`: a directory on storage that all nodes share, or s3://bucket/prefix; by default the root of
    `hyperpod-kit job run`, else `checkpoints` in `output_dir`. `checkpoint_options` are those of Manager. When to save
    is the Trainer's business (`save_strategy`, `save_steps`), how many to keep `save_total_limit` (default: all) and
    `metric_for_best_model`. A save whose step is the best or the last waits for room, all others are skipped when
    earlier ones are still on their way to storage. Under PEFT what is frozen is left out of the checkpoints. With
    `checkpoint_options={"save_on_signal": True}` `train` ends with SystemExit(75) after SIGUSR1 or SIGTERM, the step
    saved.
    Raises ValueError for `save_only_model` and for a `hub_strategy` that pushes checkpoints.
    """

    def __init__(
        self,
        *args: Any,
        checkpoint_root: RootPath | None = None,
        checkpoint_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        trainer: Any = self
        _require_supported_training_arguments(trainer.args)
        self._root = resolve_root(checkpoint_root, trainer.args.output_dir)
        self._options = {"keep": _retention_policy_of_save_total_limit(trainer.args), **(checkpoint_options or {})}
        self._run: _TrainCall | None = None
        trainer.add_callback(_StepCallback(self))
        if not trainer.args.ignore_data_skip and "iteration" not in signature(DataLoaderShard).parameters:
            warnings.warn(
                "a run that resumes in the middle of an epoch receives the rest of the epoch in another order: this "
                "version of accelerate does not keep the epoch; pip install -U accelerate",
                RuntimeWarning,
                stacklevel=2,
            )

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """See Trainer, but None and True resume from the newest checkpoint that all ranks can prove, if there is one.

        Where there is none, a path (of a Trainer's own checkpoint) is loaded as the Trainer does it, and True means its
        newest `checkpoint-N` in `output_dir`, or a first start. Returns when the newest save is durable. Raises as
        `Manager.restore` does, and CheckpointError for False where there are checkpoints, and when the newest save came
        to nothing.
        """
        parent: Any = super()
        with Manager(self._root, **self._options) as manager, tempfile.TemporaryDirectory() as folder:
            self._run = _TrainCall(manager, folder)
            try:
                restored: Restored | None = None
                while True:
                    begin = self._write_trainer_state_and_choose_resume_path(resume_from_checkpoint, restored)
                    try:
                        return parent.train(begin, *args, **options)
                    except _RestoredOtherStep as other:
                        restored = other.restored
            finally:
                self._run = None

    def _write_trainer_state_and_choose_resume_path(
        self, resume_from: str | bool | None, restored: Restored | None
    ) -> str | None:
        """Write the Trainer's state of the newest checkpoint into the folder that the Trainer resumes from
        and return it; without a checkpoint return what was asked for.

        `restored` is what turned out to be the newest that is whole. Raises CheckpointError for False
        where there are checkpoints.
        """
        trainer: Any = self
        run, training = self._current_train_call_or_raise, trainer.args
        only = None
        if restored is not None:
            only = restored.checkpoint_id
        peeked = run.manager.inspect(only)
        run.expected = None
        if peeked is not None:
            run.expected = peeked.checkpoint_id
        run.resumed = None
        if peeked is None:
            if resume_from is True:
                last: str | None = trainer_utils.get_last_checkpoint(training.output_dir)
                return last
            return resume_from or None
        if resume_from is False:
            raise CheckpointError(
                f"{self._root} holds checkpoints of this run, and resume_from_checkpoint is False",
                hint="leave it out to resume from them; give another root to start from scratch",
            )
        if LAYOUT not in peeked.extra:
            raise CheckpointError(
                f"{peeked.checkpoint_id} was not written by CheckpointedTraining", hint="give another root"
            )
        state = json.loads(peeked.extra[LAYOUT]["state"])
        if not training.auto_find_batch_size:
            # transformers before 5 goes on with the size that was saved, which may be that of other ranks.
            state["train_batch_size"] = training.train_batch_size
        run.resumed = state
        Path(run.folder, _STATE).write_text(json.dumps(state))
        # Else an early stop has forgotten how long it has waited, and the run goes on past its end.
        training.restore_callback_states_from_checkpoint = True
        return run.folder

    @property
    def _current_train_call_or_raise(self) -> _TrainCall:
        if self._run is None:
            raise CheckpointError("no training is running", hint="trainer.train()")
        return self._run

    def set_initial_training_values(self, *args: Any, **options: Any) -> Any:
        """See Trainer. Where the run was over when it was saved no epoch is left: the Trainer would train a step before
        it looks."""
        parent: Any = super()
        epochs, *middle, max_steps = parent.set_initial_training_values(*args, **options)
        run = self._run
        if (
            run is None
            or run.resumed is None
            or not _had_finished_when_saved(run.resumed, max_steps, self._callback_class_names())
        ):
            return (epochs, *middle, max_steps)
        run.epochs = epochs
        return (0, *middle, max_steps)

    def _callback_class_names(self) -> set[str]:
        trainer: Any = self
        return {type(callback).__name__ for callback in trainer.callback_handler.callbacks}

    # --- what the Trainer asks for when it resumes --------------------------------------------------------------

    def _is_resumed_folder(self, checkpoint: object) -> bool:
        return self._run is not None and checkpoint == self._run.folder

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **options: Any) -> None:
        parent: Any = super()
        if not self._is_resumed_folder(resume_from_checkpoint):
            parent._load_from_checkpoint(resume_from_checkpoint, *args, **options)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        parent: Any = super()
        if self._is_resumed_folder(checkpoint):
            self._restore_or_raise_other_checkpoint()
        else:
            parent._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        parent: Any = super()
        if not self._is_resumed_folder(checkpoint):
            parent._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        parent: Any = super()
        if self._is_resumed_folder(checkpoint):
            self._current_train_call_or_raise.state.restore_rng()
        else:
            parent._load_rng_state(checkpoint)

    def _restore_or_raise_other_checkpoint(self) -> None:
        """Restore model, optimizer and all else, now that they exist, from the newest checkpoint. Raises
        _RestoredOtherStep when that is not the one that the Trainer's counters are of."""
        run = self._current_train_call_or_raise
        run.state = self._build_state()
        restored = run.manager.restore(run.state)
        checkpoint_id = None
        if isinstance(restored, Restored):
            checkpoint_id = restored.checkpoint_id
        if checkpoint_id != run.expected:
            assert isinstance(restored, Restored), "committed checkpoints are not deleted"
            raise _RestoredOtherStep(restored)

    def _build_state(self) -> State:
        trainer: Any = self
        objects = {"scheduler": trainer.lr_scheduler, "scaler": getattr(trainer.accelerator, "scaler", None)}
        return State(
            trainer.model_wrapped,
            trainer.optimizer,
            extra={},
            frozen=not is_adapter(trainer.accelerator.unwrap_model(trainer.model)),
            **{name: thing for name, thing in objects.items() if thing is not None},
        )

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        """See Trainer. Within `train` the watch for jobs that hang knows of it."""
        parent: Any = super()
        if self._run is None:
            return parent.evaluation_loop(*args, **options)
        with self._run.manager.evaluation():
            return parent.evaluation_loop(*args, **options)

    # --- what it asks for when it saves -------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any, *_: Any, **__: Any) -> None:
        trainer: Any = self
        run, state = self._current_train_call_or_raise, trainer.state
        trainer.store_flos()
        best = state.best_global_step is not None and state.best_global_step == state.global_step
        if state.best_global_step:
            state.best_model_checkpoint = self._root
        ending = run.manager.ending
        last = ending or trainer.control.should_training_stop or state.global_step >= state.max_steps
        if trainer.is_world_process_zero():
            run.state.extra[LAYOUT] = self._trainer_state_and_model_files()
        run.newest = run.manager.save(
            state.global_step,
            run.state,
            on_busy="wait" if best or last else "skip",
            metrics=_evaluation_metrics_of_current_step(state),
        )
        if ending:  # out of `train`, which waits for the save
            raise SystemExit(REQUEUE_EXIT_CODE)

    def _trainer_state_and_model_files(self) -> dict[str, Any]:
        """Return what the Trainer and `from_pretrained` read of a checkpoint beside tensors."""
        trainer: Any = self
        callbacks = [*trainer.callback_handler.callbacks, trainer.control]
        state = dataclasses.replace(
            trainer.state,
            stateful_callbacks=[callback for callback in callbacks if isinstance(callback, ExportableState)],
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        parts: dict[str, Any] = {name: getattr(model, name, None) for name in ("config", "generation_config")}
        files = {f"{name}.json": part.to_json_string() for name, part in parts.items() if part is not None}
        run = self._current_train_call_or_raise
        if run.names is None:  # once: PEFT may look at the base's own place for it
            if is_adapter(model):
                run.names = adapter_tensor_names(model)
            else:
                run.names = {}
        if run.names:
            files["adapter_config.json"] = json.dumps(json_ready(model.active_peft_config.to_dict()))
        return {"state": json.dumps(dataclasses.asdict(state)), "files": files, "names": run.names}

    def _load_best_model(self) -> None:
        trainer: Any = self
        run, step = self._current_train_call_or_raise, trainer.state.best_global_step
        if run.newest is not None:
            run.newest.wait()  # then the earlier ones have had their end too
        names = (
            entry.name
            for entry in selection.iter_committed_not_excluded_newest_first(open_store(self._root))
            if entry.committed
        )
        best_id = next((str(name) for name in names if name.step == step), None)
        if best_id is None:
            raise CheckpointError(
                f"the checkpoint of the best step, {step}, is not below {self._root}",
                hint=f"hyperpod-kit checkpoint ls {self._root}",
            )
        frozen = not is_adapter(trainer.accelerator.unwrap_model(trainer.model))
        load_state(self._root, State(trainer.model_wrapped, rng=False, frozen=frozen), checkpoint_id=best_id)


class CheckpointedTrainer(CheckpointedTraining, Trainer):  # type: ignore[misc]  # transformers has no types
    """See CheckpointedTraining."""


def get_last_checkpoint(root: str | os.PathLike[str]) -> str | None:
    """transformers' function of this name, for a root of ours: ROOT/ATTEMPT of the newest that is committed, or None.
    Raises NoValidCheckpoint when what was committed is lost, OSError."""
    where = os.fspath(root)
    store = open_store(where)
    for entry in selection.iter_committed_not_excluded_newest_first(store):
        return f"{where.rstrip('/')}/{entry.checkpoint_id}"
    selection.require_no_lost_commits(store)
    return None


@dataclasses.dataclass
class _TrainCall:
    """One call of `train`."""

    manager: Manager
    folder: str
    state: State = dataclasses.field(default_factory=State)
    expected: str | None = None
    newest: Handle | None = None
    names: dict[str, str] | None = None
    resumed: dict[str, Any] | None = None
    """The words of `trainer_state.json` that the Trainer goes on from."""
    epochs: int | None = None
    """Where the run is over: the number of its epochs, of which the Trainer is to begin none."""


class _RestoredOtherStep(Exception):
    """The newest checkpoint that is whole is another one than the Trainer was told of."""

    def __init__(self, restored: Restored) -> None:
        super().__init__(restored.checkpoint_id)
        self.restored = restored


class _StepCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Hears of the beginning of a first start, and of each step."""

    def __init__(self, training: CheckpointedTraining) -> None:
        self._training = training

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        run = self._training._current_train_call_or_raise
        if run.epochs is not None:
            state.num_train_epochs = run.epochs
        if run.expected is None:
            self._training._restore_or_raise_other_checkpoint()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback. When saves come to nothing, the step is saved, which raises; after a signal it is
        saved, which ends the process."""
        manager = self._training._current_train_call_or_raise.manager
        if not manager.reached(state.global_step) or manager.ending:
            control.should_save = True


def _had_finished_when_saved(state: Mapping[str, Any], max_steps: int, callbacks: Collection[str]) -> bool:
    """Whether a run that was saved with that state had come to its end: by its number of steps, or by an early stop.

    An early stop counts while the program has the callback and trains as many steps as before. Another callback that
    has ended the run, shortly before a time limit say, is asked anew.
    """
    if state["global_step"] >= max_steps:
        return True
    saved = state.get("stateful_callbacks") or {}
    if state["max_steps"] != max_steps or not any(map(_requests_stop, _as_list(saved.get("TrainerControl")))):
        return False
    return any(_stopped_early(callback) for name in callbacks for callback in _as_list(saved.get(name)))


def _as_list(saved: Any) -> list[Any]:
    if isinstance(saved, list):
        return saved
    if saved is None:
        return []
    return [saved]


def _requests_stop(control: Mapping[str, Any]) -> bool:
    return bool(control["args"]["should_training_stop"])


def _stopped_early(callback: Mapping[str, Any]) -> bool:
    """Return whether that is the state of an `EarlyStoppingCallback` that has ended its run."""
    patience = callback.get("args", {}).get("early_stopping_patience")
    counter = callback.get("attributes", {}).get("early_stopping_patience_counter")
    return patience is not None and counter is not None and counter >= patience


def _retention_policy_of_save_total_limit(args: Any) -> policy.Policy | None:
    if not args.save_total_limit or args.save_total_limit < 0:
        return None
    latest = policy.Latest(args.save_total_limit)
    if not args.metric_for_best_model:
        return latest
    mode = "min"
    if args.greater_is_better:
        mode = "max"
    return latest | policy.Best(_with_eval_prefix(args.metric_for_best_model), 1, mode=mode)


def _with_eval_prefix(name: str) -> str:
    if name.startswith("eval_"):
        return name
    return f"eval_{name}"


def _evaluation_metrics_of_current_step(state: Any) -> dict[str, float]:
    """Return the numbers of this step's evaluation; {} if there was none."""
    for logged in reversed(state.log_history):
        if logged.get("step") != state.global_step:
            break
        if any(name.startswith("eval_") for name in logged):
            return {name: value for name, value in logged.items() if isinstance(value, (int, float))}
    return {}


def _require_supported_training_arguments(args: Any) -> None:
    """Raise ValueError for training arguments that cannot be served: save_only_model, and a
    hub_strategy that pushes checkpoints."""
    if args.save_only_model:
        raise ValueError("save_only_model: a run cannot resume from such a checkpoint; leave out save_only_model")
    if args.push_to_hub and str(getattr(args.hub_strategy, "value", args.hub_strategy)) != "end":
        raise ValueError(f"hub_strategy={args.hub_strategy}: checkpoints are not pushed; use hub_strategy='end'")


# What of a model is PEFT's: an adapter over weights that come from elsewhere.


def is_adapter(model: Any) -> bool:
    """Return whether the model is one of PEFT: an adapter over weights that come from elsewhere."""
    return hasattr(model, "peft_type") and hasattr(model, "active_peft_config")


def adapter_tensor_names(model: Any) -> dict[str, str]:
    """Return our name of each tensor of the adapter -> PEFT's in its file: found by the memory that
    both share."""
    from peft import get_peft_model_state_dict

    names_by_pointer = {value.data_ptr(): name for name, value in model.state_dict().items()}
    peft_state = get_peft_model_state_dict(model)
    return {
        names_by_pointer[value.data_ptr()]: name
        for name, value in peft_state.items()
        if value.data_ptr() in names_by_pointer
    }


def json_ready(value: Any) -> Any:
    """Return a value with sets and enums replaced by what PEFT writes for them in JSON."""
    if isinstance(value, dict):
        return {name: json_ready(item) for name, item in value.items()}
    if isinstance(value, set):
        return [json_ready(item) for item in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    return getattr(value, "value", value)
