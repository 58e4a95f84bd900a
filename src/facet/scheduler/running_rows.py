"""The counts of running requests that change in every step, as arrays over rows.

known tokens <= tokens        the difference is pending: sampled on the device, not yet seen by the host
computed tokens <= tokens     the difference is what the request still wants to compute
"""

import numpy as np

from facet.scheduler.request_state import RequestState

NO_REQUEST = 0


class RunningRows:
    def __init__(self, max_num_seqs: int) -> None:
        self.request_number = np.full(max_num_seqs, NO_REQUEST, np.int64)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_known = np.zeros(max_num_seqs, np.int64)
        self.num_computed = np.zeros(max_num_seqs, np.int64)
        self.max_num_tokens = np.zeros(max_num_seqs, np.int64)
        self.waits_for_host = np.zeros(max_num_seqs, np.bool_)
        # For prompt_logprobs, positions [logits_from, logits_until) still want their logits.
        self.logits_from = np.zeros(max_num_seqs, np.int64)
        self.logits_until = np.zeros(max_num_seqs, np.int64)

    def occupy(self, row: int, state: RequestState, num_computed: int) -> None:
        self.request_number[row] = state.number
        self.num_tokens[row] = self.num_known[row] = state.num_known
        self.num_computed[row] = num_computed
        self.max_num_tokens[row] = state.max_num_tokens
        self.waits_for_host[row] = state.request.needs_sampled_token_on_host
        self.logits_from[row] = state.num_logits_done
        self.logits_until[row] = state.num_logits_wanted

    def vacate(self, row: int) -> None:
        self.request_number[row] = NO_REQUEST
