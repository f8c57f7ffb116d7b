"""The version of this installation, as its package says it."""

from importlib.metadata import version

__version__ = version("roibeam")
