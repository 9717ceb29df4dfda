"""A long run under random faults, and then the check of every acknowledged message."""
