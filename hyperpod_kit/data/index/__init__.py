"""The index: where each sample lies, and what each file was when it was looked at."""
