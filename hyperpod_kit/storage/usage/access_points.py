"""The access points of an EFS file system as directories of it: EFS itself says nothing about how full one is."""

from __future__ import annotations

from hyperpod_kit.aws.efs import Efs


def access_point_names_by_directory(file_system_id: str, mount: str) -> dict[str, str]:
    """Map directories of access points, below `mount` of the file system's root directory, to the points' names.

    Of several access points with one directory the names stand together. Raises AwsError, Unreachable.
    """
    names_of_paths: dict[str, list[str]] = {}
    for point in Efs().access_points(file_system_id):
        path = point.get("RootDirectory", {}).get("Path", "/")
        name = str(point["AccessPointId"])
        if point.get("Name"):
            name = f"{point['Name']} ({name})"
        if path != "/":
            names_of_paths.setdefault(f"{mount.rstrip('/')}{path.rstrip('/')}", []).append(name)
    return {path: ", ".join(sorted(names)) for path, names in names_of_paths.items()}
