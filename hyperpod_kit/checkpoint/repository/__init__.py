"""The torch-free core of the checkpoint format. Standard library only (xxhash where it can be imported)."""
