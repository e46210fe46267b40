"""What two checkpoints have differently."""
