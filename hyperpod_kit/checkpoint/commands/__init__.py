"""`hyperpod-kit checkpoint …` on nodes and elsewhere, without torch."""
