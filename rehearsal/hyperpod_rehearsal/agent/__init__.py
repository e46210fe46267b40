"""What HyperPod's agent does inside a node, where it lies with what it imports of `untrusted` alone.

Standard library only, Python 3.8: this file runs in a node.
"""
