"""Experiment blueprints: a plan in Markdown, run to its end without anyone watching, then reported.

parse → check → execute (launch, watch, detect, repair) → report. Each has a module of that name.
The wrapper (wrapper.py, command.py, stamping.py, attempt.py) runs inside the session and imports nothing
but the standard library.
"""
