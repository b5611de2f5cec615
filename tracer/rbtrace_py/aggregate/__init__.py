"""Histograms, counts and the results made of them."""
