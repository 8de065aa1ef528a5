"""Types of the configuration: a class per section, which plans, rules and jobs share."""
