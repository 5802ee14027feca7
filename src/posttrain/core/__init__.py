"""The vocabulary of the lab: frozen models, scores, statistics, paths, errors and protocols.

Nothing here imports anything but the standard library and pydantic.
"""
