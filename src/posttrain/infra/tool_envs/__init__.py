"""Tools whose pins fight with ours, each in an environment of its own under the lab home.

A tool is two files here: `<name>.yaml` (recipe) and `<name>.txt` (lock, without torch and CUDA packages).
"""
