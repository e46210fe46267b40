"""Machines: image, overlay, network, control group and clock. Begin with `machine`."""
