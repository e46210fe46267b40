"""The logs of nodes as CloudWatch has them."""
