"""Who did what to which file, from which job: logs of several kinds in one file that can be asked."""
