"""Nodes that a command is about to take, emptied before: begin with `vacate`."""
