"""What each command of ci/ does, a module per command."""
