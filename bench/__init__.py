"""Measurements of the hot path, as ratios within one run. `python -m bench` from the project's root; see README.md."""
