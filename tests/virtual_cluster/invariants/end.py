"""At the end every trial is finished, and nothing is left (rule 8 of section 8)."""

from .private import (
    actor_to_trial,
    decisions_that_stand,
    num_actors,
    num_idle_actors,
    num_pending_actors,
    tasks,
)


class NothingIsLeft:
    """The run ends with every trial finished, and nothing held."""

    RULES = {
        "actor-left": "No actor is left at the end.",
        "decision-left": "No decision is left at the end.",
        "future-left": "No task is waited for at the end.",
        "unfinished": "Every trial is finished at the end.",
    }

    def at_end(self, monitor, controller) -> None:
        for trial in controller.get_trials():
            if not trial.is_finished():
                monitor.broken(
                    "unfinished",
                    f"the run ended, the trial is {trial.status}",
                    trial.trial_id,
                )
        for trial in actor_to_trial(controller).values():
            monitor.broken(
                "actor-left", "a finished trial holds an actor", trial.trial_id
            )
        pending = num_pending_actors(controller)
        if pending:
            monitor.broken("actor-left", f"{pending} actors are still asked for")
        for ref in tasks(controller):
            monitor.broken(
                "future-left", f"a {ref.method} is still waited for", ref.trial_id
            )
        for where, trial_id, decision in decisions_that_stand(controller):
            monitor.broken("decision-left", f"{decision} is left in {where}", trial_id)

    def after_cleanup(self, monitor, controller, resources) -> None:
        left = num_actors(controller)
        if left or resources.num_acquired:
            monitor.broken(
                "actor-left",
                f"{left} actors are left and {resources.num_acquired} of them hold "
                f"resources after cleanup",
            )
        cached = num_idle_actors(controller)
        if cached:
            monitor.broken("actor-left", f"{cached} actors are cached")


INVARIANTS = (NothingIsLeft,)
