"""The real dispatcher with simulated workers: its own load, and predictions of the time real workers would take."""
