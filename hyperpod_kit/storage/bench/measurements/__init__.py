"""What `storage bench` measures of a mount, one file a measurement: `run` puts them together."""
