"""What every program of a node needs: who the node is, its paths, files, locks, systemd. Begin with `context`."""
