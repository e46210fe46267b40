"""Asking the other nodes of the cluster from one of them, mostly the controller."""
