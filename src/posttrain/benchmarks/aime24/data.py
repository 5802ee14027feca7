"""AIME 2024 is tested, AIME 2025 validates."""

from posttrain.benchmarks.aime_rows import prepare

__all__ = ["prepare"]
