"""HTML pages of a run: the race, which replays methods side by side at the recorded speed, and the preference study."""
