"""What a commit needs of each rank, and one commit made of all of it: begin with `shard_report`."""
