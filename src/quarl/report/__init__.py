"""Rows to tables, figures and pages: pure functions, nothing is measured here."""
