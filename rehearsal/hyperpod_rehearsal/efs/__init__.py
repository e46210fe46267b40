"""EFS's API as far as access points and policies go, over the registry that mount.efs of the nodes reads."""
