"""Measures Lamella beside its peers, and its bound, in one run: `python -m benchmarks --help`."""
