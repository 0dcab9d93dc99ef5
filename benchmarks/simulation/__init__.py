"""The real dispatcher against workers that are none: its own load, and predictions of what real ones would take."""
