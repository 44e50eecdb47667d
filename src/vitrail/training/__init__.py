"""From DATA to a run folder: configuration, plan, phases, loop, state."""
