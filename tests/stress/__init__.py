"""Campaigns that look for what breaks QuaRL: files, processes and runs are maltreated, and what is lost is counted."""
