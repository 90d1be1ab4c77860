"""Omnistage: omni-modality models served as stages joined by a message broker.

This package owns what every stage shares: contracts, pipelines, the bus, the tensor plane, the runtime and the
launcher. It never imports a service.
"""

from importlib.metadata import version

__version__ = version("omnistage")
