"""Training that scripts inside agent folders share: supervised fine-tuning and GRPO under a clock.

Everything here runs in the agent's own process; the harness never imports it.
"""
