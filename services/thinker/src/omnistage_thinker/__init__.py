"""The thinker service."""

from importlib.metadata import version

__version__ = version("omnistage-thinker")
