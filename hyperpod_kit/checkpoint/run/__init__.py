"""What a Manager keeps of its run: who may call it, and who hears what the agents say."""
