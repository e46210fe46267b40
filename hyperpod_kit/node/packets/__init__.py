"""Rules of the node's packet filter, and the ports that they are about. Begin with `packet_rules`."""
