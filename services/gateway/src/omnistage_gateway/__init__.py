"""The gateway service."""

from importlib.metadata import version

__version__ = version("omnistage-gateway")
