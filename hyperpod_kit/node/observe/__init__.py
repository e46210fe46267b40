"""What is seen of a mount: a probe in a child with a deadline, whose mount it is, and from both its state.

Below all who act on mounts: `mounts` makes them and `health` watches them, and both ask here.
"""
