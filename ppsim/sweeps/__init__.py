"""Many runs of changed scenarios: which points there are, where they run, what is kept of them, and their table."""
