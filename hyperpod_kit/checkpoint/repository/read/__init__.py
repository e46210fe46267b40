"""Shards read from front to back, every chunk compared before it is handed on: begin with `verify`."""
