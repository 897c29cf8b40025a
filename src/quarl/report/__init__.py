"""Tables, figures and pages of rows: pure functions that measure nothing."""
