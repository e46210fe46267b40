"""The former name of `checkpoint.commands.cli`: for a program that started before its bundle was updated."""

from __future__ import annotations

from hyperpod_kit.checkpoint.commands.cli import main

__all__ = ["main"]
