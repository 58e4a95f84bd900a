"""Chooses which of several replicas answers a request. Pure bookkeeping: no network, no clock, no processes."""

from facet.router.choice import RouterLimits
from facet.router.route_key import RouteKey, make_route_key
from facet.router.router import Route, Router

__all__ = ["Route", "RouteKey", "Router", "RouterLimits", "make_route_key"]
