"""The simulated service, small: the router finds more in caches than hashing does, and keeps the load in bounds."""

import argparse

import numpy as np

from benchmarks.router_simulation import POLICIES, Simulation, draw_sessions

OPTIONS = argparse.Namespace(replicas=12, sessions=600, applications=60, failures=0.25, max_keys=1 << 16, seed=0)


def run(name: str) -> Simulation:
    sessions = draw_sessions(OPTIONS)
    simulation = Simulation(POLICIES[name](sessions, OPTIONS), sessions, OPTIONS)
    simulation.run()
    return simulation


def test_prefixes_are_found_where_they_are() -> None:
    routed, hashed = run("Facet's router"), run("consistent hashing")
    assert routed.found_bytes / routed.best_bytes > 0.9
    assert routed.found_bytes / routed.num_bytes > hashed.found_bytes / hashed.num_bytes
    assert np.mean(routed.peaks) < np.mean(hashed.peaks)
    assert routed.num_lost > 0, "replicas died"
    assert not routed.to_restart, "and all were restarted"
    assert not routed.policy.routes  # type: ignore[attr-defined]


def test_an_endless_cache_has_what_was_asked_before() -> None:
    """Counted at once by arrays, here by looking at one prompt after the other."""
    sessions = draw_sessions(OPTIONS)
    known: set[int] = set()
    for session, application in enumerate(sessions.applications):
        before = sessions.shared_bytes[application] if application in known else 0
        known.add(application)
        for request in range(sessions.first_requests[session], sessions.first_requests[session + 1]):
            assert sessions.sessions[request] == session
            assert sessions.best_bytes[request] == before
            assert sessions.num_bytes[request] > max(before, sessions.shared_bytes[application])
            before = sessions.num_bytes[request]
