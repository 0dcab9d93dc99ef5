"""What ``report.py`` and ``compare.py`` make of records: figures, tables, plots and pages. Nothing is measured here."""
