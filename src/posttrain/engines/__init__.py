"""Engines turn prompts into texts for a checkpoint, each inside a worker process of its own."""
