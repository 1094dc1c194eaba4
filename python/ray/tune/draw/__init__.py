"""Draws the decisions of an experiment's scheduler: ``python -m ray.tune.draw``."""
