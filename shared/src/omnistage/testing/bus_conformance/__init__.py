"""What every bus must do. An implementation's test class derives from BusConformance and gives what is abstract.

Two buses on one namespace stand for two processes. Nothing here depends on how fast the machine is: what must happen
is awaited, and what must not happen is shown by something later happening first.
"""

from omnistage.testing.bus_conformance.steps import OpenBus, Pair
from omnistage.testing.bus_conformance.suite import BusConformance

__all__ = ["BusConformance", "OpenBus", "Pair"]
