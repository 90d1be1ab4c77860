"""The codec service."""

from importlib.metadata import version

__version__ = version("omnistage-codec")
