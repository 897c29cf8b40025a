"""Studies: many trainings and evaluations, resumable, compared in one table and one figure."""
