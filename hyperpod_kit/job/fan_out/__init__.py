"""Copies files from shared storage to the local disks of all nodes of a job; each byte is read from storage once."""
