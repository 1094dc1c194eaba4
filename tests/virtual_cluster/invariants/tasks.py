"""What is in flight of a trial (rule 2 of the design's section 8)."""


class OneTaskOfAKind:
    """A trial has at most one ``train`` and one ``save`` in flight."""

    RULES = {
        "two-saves": "A trial has at most one save in flight.",
        "two-trains": "A trial has at most one train in flight.",
    }

    def on_track(self, monitor, ref, kind, count) -> None:
        if count > 1 and (kind == "train" or kind == "save"):
            monitor.broken(
                f"two-{kind}s",
                f"{count} {kind} tasks of one trial are in flight",
                ref.trial_id,
            )


class BufferLength:
    """Results are buffered up to the length that Tune was told."""

    RULES = {"buffer-length": "No buffer is longer than Tune was told."}

    def on_submit(self, monitor, ref, view) -> None:
        if ref.method == "train_buffered" and ref.args[1] > monitor.buffer_length:
            monitor.broken(
                "buffer-length",
                f"{ref.args[1]} results are to be buffered, where the buffer's length "
                f"was set to {monitor.buffer_length}",
                ref.trial_id,
            )


class SavesAreNotWaitedFor:
    """The driver does nothing else while it waits for the save of one trial.

    It is said when the run has ended: one that hangs has broken something else first.
    """

    RULES = {"driver-waits": "The driver does not wait for the save of one trial."}

    def __init__(self):
        self._waited = None

    def on_wait(self, monitor, ref, seconds) -> None:
        if ref.method == "save" and self._waited is None:
            self._waited = ref.trial_id, seconds

    def at_end(self, monitor, controller) -> None:
        if self._waited is not None:
            trial_id, seconds = self._waited
            monitor.broken(
                "driver-waits",
                f"the driver waited for {seconds:.1f} s for a save, while no other "
                f"event was handled",
                trial_id,
            )


INVARIANTS = (OneTaskOfAKind, BufferLength, SavesAreNotWaitedFor)
