"""What is run: trainables, schedulers and searchers."""
