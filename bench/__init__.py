"""Measurements and tables, run by ``make bench``; nothing here is timed in a test."""
