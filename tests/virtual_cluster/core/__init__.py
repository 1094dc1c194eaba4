"""The clock, the actors, the storage and the real controller over them."""
