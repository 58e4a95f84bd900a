"""Who comes first: lower priority number, then earlier arrival, then earlier submission.

The same order decides who computes first, who is admitted first and, read from its end, who is preempted first. A
request keeps its place when it is preempted, so it returns to the head of its class.
"""

from facet.request import Request

OrderKey = tuple[int, float, int]


def order_key(request: Request, request_number: int) -> OrderKey:
    return (request.priority, request.arrival_time, request_number)
