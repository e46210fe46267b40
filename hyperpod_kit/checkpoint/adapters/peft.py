"""What of a model is PEFT's: an adapter over weights that come from elsewhere."""

from __future__ import annotations

from typing import Any


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
