"""Real parts that tests start, and small tools that several tests use; no tests in here."""
