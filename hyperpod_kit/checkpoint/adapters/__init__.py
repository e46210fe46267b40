"""One file a framework: the engine under the trainer that people already have. Nothing here is imported unless used."""
