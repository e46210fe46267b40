"""Which tensors of model and optimizer are each rank's own: `State(own=...)`.

A name is one of the checkpoint's, and may have wildcards: `model.experts.*`, `objects.ema.*`. An object stands for all
its tensors. What an optimizer keeps for a parameter goes with the parameter.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping

import torch

_PREFIXES = ("model", "optimizer", "objects")
_STATE = re.compile(r"(?:optimizer|objects\.[^.]+)\.state\.(.+)")


class PerRankPaths:
    """Whether a path is each rank's own. True of nothing when `selectors` is empty."""

    def __init__(self, selectors: Iterable[object], things: Mapping[str, object]) -> None:
        """`things`: the state's parts by path. Raises ValueError for what is no part of it, TypeError."""
        if isinstance(selectors, str):
            selectors = [selectors]
        patterns = [pattern for selector in selectors for pattern in _paths_or_patterns_of_selector(selector, things)]
        # Of a tensor's name and of everything below it: of a parameter what the optimizer has for it, too.
        self._match: re.Pattern[str] | None = None
        if patterns:
            self._match = re.compile(
                "|".join(f"(?:{fnmatch.translate(more)})" for name in patterns for more in (name, f"{name}.*"))
            )
        self._cache: dict[str, bool] = {}

    def __bool__(self) -> bool:
        """Whether there is a selector."""
        return self._match is not None

    def __contains__(self, path: object) -> bool:
        if self._match is None or not isinstance(path, str):
            return False
        is_owned = self._cache.get(path)
        if is_owned is None:
            state = _STATE.fullmatch(path)
            also = path
            if state is not None:
                also = f"model.{state.group(1)}"
            is_owned = self._cache[path] = bool(self._match.fullmatch(path) or self._match.fullmatch(also))
        return is_owned


def _paths_or_patterns_of_selector(selector: object, things: Mapping[str, object]) -> list[str]:
    if isinstance(selector, str):
        if selector.partition(".")[0] not in _PREFIXES:
            raise ValueError(
                f"own={selector!r}: names begin with model., optimizer. or objects., "
                "as `hyperpod-kit checkpoint show` lists them"
            )
        return [selector]
    names = [_escape_wildcards(path) for path, thing in things.items() if thing is selector]
    modules = {path: thing for path, thing in things.items() if isinstance(thing, torch.nn.Module)}
    if not names and isinstance(selector, torch.nn.Module):
        for path, thing in modules.items():
            inside = thing.named_modules(remove_duplicate=False)
            names += [
                _escape_wildcards(f"{path}.{_strip_wrapper_prefixes(name)}")
                for name, module in inside
                if module is selector
            ]
    elif not names and isinstance(selector, torch.Tensor):
        for path, thing in modules.items():
            names += [
                _escape_wildcards(f"{path}.{_strip_wrapper_prefixes(name)}")
                for name, tensor in _named_parameters_and_buffers(thing)
                if tensor is selector
            ]
    elif not names and not isinstance(selector, torch.optim.Optimizer):
        raise TypeError(f"own: {type(selector).__qualname__} is neither a name nor a module, a tensor or an optimizer")
    if not names:
        raise ValueError(f"own: a {type(selector).__qualname__} that is no part of the state")
    return names


def _named_parameters_and_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _strip_wrapper_prefixes(name: str) -> str:
    """Return the name without the prefixes that wrappers put into it."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _escape_wildcards(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
