"""What lies under a root beside the checkpoints: who owns it, what was committed, pinned, leased or given up."""
