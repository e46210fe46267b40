"""Copies of captures in another node's memory: begin with `partner_memory`."""
