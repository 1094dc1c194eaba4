"""Draws runs from seeds, finds the broken ones, and makes them short."""
