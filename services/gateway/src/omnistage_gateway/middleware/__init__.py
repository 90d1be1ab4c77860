"""What happens to every request, as plain ASGI: ids, keys, size, log, metrics, and the last line against bugs."""

from omnistage_gateway.middleware.auth import Authenticate
from omnistage_gateway.middleware.body_limit import LimitBody
from omnistage_gateway.middleware.crash import ReportCrash
from omnistage_gateway.middleware.leaving import Leaving
from omnistage_gateway.middleware.observe import Observe

__all__ = ["Authenticate", "Leaving", "LimitBody", "Observe", "ReportCrash"]
