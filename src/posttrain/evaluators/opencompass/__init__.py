"""OpenCompass as an evaluator: its configuration asks, our engine answers, and its files are read with care.

`settings` says where a configuration finds its rows, `inputs` writes them and the run's configuration,
`results` reads what came of it. The process itself is started by `grading/adapting.py`.
"""
