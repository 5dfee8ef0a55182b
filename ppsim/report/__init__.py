"""Reads recordings, and nothing else: tables, schedules and pictures of a run."""
