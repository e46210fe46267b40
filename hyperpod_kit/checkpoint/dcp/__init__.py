"""Our checkpoints through torch.distributed.checkpoint, and reading them for another number of ranks."""

_MODULES = {"Reader": "reader", "Writer": "writer"}
"""Public name -> the module of this package that defines it."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
