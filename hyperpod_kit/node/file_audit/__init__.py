"""Who did what to which file of a file system, seen by the kernel of this node. Off unless it is started."""
