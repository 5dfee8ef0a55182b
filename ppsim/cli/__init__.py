"""The only place that prints, exits or configures logging. Each command is a file; heavy imports are inside it."""
