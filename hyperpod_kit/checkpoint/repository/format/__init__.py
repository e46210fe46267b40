"""The files of a checkpoint: names, shards, manifest, index and digests. Begin with `layout` and `manifest`."""
