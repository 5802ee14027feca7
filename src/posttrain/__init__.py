"""posttrain: a lab in which agents post-train small language models and are graded honestly."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("posttrain")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
