"""Bytes between shards, host memory and devices, and whether tensors stayed as they were: begin with `load`."""
