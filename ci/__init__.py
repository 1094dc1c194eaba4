"""Commands that a person or CI runs, and the package that they share."""
