"""Repeated steps: torch and GT at each of their levels on the same programs, in turns."""
