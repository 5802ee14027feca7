"""Experiment blueprints: a plan in Markdown, run to its end without anyone watching, then reported.

parse    parse.py (labels, fences, values, limits)     Markdown as labelled parts
check    check.py (yaml_hints.py)                      what is missing or wrong, with the line
execute  execute.py (begin.py, start.py, mend.py)      the whole experiment; state.py is its memory on disk
launch   launch.py, services.py                        sessions and services
machine  machine.py (local.py, ssh.py)                 where it runs
watch    watch.py (logs.py, policy.py)                 looks at growing intervals, seldom ends early
detect   detect.py (progress.py, metrics.py, plateau.py)   what the log says
judge    outcome.py                                    what the end of an attempt means
repair   repair.py (rules.py)                          changes as data, and the rules that propose them
report   report.py, result_md.py, trial_md.py, conclusion.py, compare.py, curve.py; documents.py writes them
look     inspect.py, waiting.py                        status, stop, wait

Inside the session runs the wrapper: wrapper.py with command.py, output.py, activity.py, stamping.py and
attempt.py, which need the standard library only and are sent along to other machines.
"""
