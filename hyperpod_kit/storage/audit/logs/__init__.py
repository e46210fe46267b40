"""The logs that an audit reads, one file a kind: `sources` knows them by name."""
