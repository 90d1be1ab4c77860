"""The life of a stage: claiming work, running handlers, control, presence, start and stop."""
