"""The one way by which this system loads what a client names by URL. Nothing else talks HTTP outwards."""

from omnistage_gateway.fetching.content import Fetched
from omnistage_gateway.fetching.loader import UrlLoader
from omnistage_gateway.fetching.policy import FetchPolicy

__all__ = ["FetchPolicy", "Fetched", "UrlLoader"]
