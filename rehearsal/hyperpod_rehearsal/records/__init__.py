"""What a rehearsal keeps about itself: where it lies, its profile, its settings, its state."""
