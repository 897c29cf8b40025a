"""Child processes: their first and last actions, and their starting, monitoring and ending."""
