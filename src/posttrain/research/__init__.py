"""The research loop: a driver model proposes, writes code, and learns from numbers, until the budget ends.

`python -m posttrain.research` runs it inside a workspace; the agent `rdagent` is that and nothing more.
"""
