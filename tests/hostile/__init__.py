"""What an ordinary user tries against others and against root: each test is an attack that has no effect."""
