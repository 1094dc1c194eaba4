"""What the commands of ci/ share, a module per concern.

Git does what it can (`git`, `series`, `checkout`), pip and venv make the environments
(`environments`), pytest runs the tests (`must_fail`) and Bazel those of BUILD.bazel
(`bazel`). Each module says what is left to do by hand.
"""
