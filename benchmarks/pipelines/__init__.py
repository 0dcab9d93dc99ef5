"""Pipelines: the bubble of a schedule, measured on workers whose ops take a set time."""
