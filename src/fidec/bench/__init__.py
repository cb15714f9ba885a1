"""Suites: many tasks, methods and seeds, run as processes and compared in one table."""
