"""What the explorer notices: known faults of stock Ray, and patches taken out."""
