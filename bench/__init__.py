"""Measures the gateway against a hand-written floor, in one run: `make bench`."""
