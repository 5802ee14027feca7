"""RL post-training as a scenario: a script trains the base model, the grading server scores it."""
