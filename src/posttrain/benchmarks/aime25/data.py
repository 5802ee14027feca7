"""AIME 2025 is tested, AIME 2024 validates."""

from posttrain.benchmarks.aime_rows import prepare

__all__ = ["prepare"]
