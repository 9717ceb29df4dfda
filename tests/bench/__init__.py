"""Speed, memory and scale beside their floors: `python -m tests.bench --help`."""
