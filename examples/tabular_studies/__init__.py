"""The tabular studies: each is a function that ``configs/tabular/experiment/`` names, and its figures."""
