"""What HyperPod's agent does inside a node. Standard library only, Python 3.8; copied into the node by itself."""
