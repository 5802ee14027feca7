"""Iteration reports read by a machine: parsing, facts, and the rules that hold one against the other."""
