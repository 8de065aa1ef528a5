"""Rules of acceptance: what a method makes of drafts."""
