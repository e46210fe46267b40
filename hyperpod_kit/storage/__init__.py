"""Storage of a team: which one, how fast it is, and who fills it. One folder a concern; see docs/storage.md."""
