"""What must hold in every run."""
