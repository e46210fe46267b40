"""The torture suite: damage, deaths and failing disks, and after each the question what a restore returns."""
