"""Types of the configuration: one class per section, used by the plan, the rules and the jobs."""
