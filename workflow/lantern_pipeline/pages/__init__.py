"""Pages: the race, which replays methods at the recorded speed, its animation, the preference study."""
