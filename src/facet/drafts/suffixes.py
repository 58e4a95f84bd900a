"""An index of a request's tokens that finds where they went on after the longest run they end in.

A *place* is a number of tokens: what follows there is the token of that index. Places with the same last token are
chained from the latest to the first, and so are places with the same last three, which are far fewer. To find long
matches only the latest few places of a chain are compared, so the cost of a guess does not grow with the text.
"""

from collections.abc import Iterator, Sequence

from facet.drafts.guess import NO_GUESS, Guess

_RUN = 3  # tokens by which places are chained, where there is one
_MOST_PLACES = 32  # that are compared
_FEW_PLACES = 12  # the same among those that share one token or two
_BITS_PER_TOKEN = 20
_RUN_MASK = (1 << _RUN * _BITS_PER_TOKEN) - 1


class SuffixIndex:
    def __init__(self, *, max_match: int, max_factor: float, min_share: float) -> None:
        self._max_match = max_match
        self._max_factor = max_factor
        self._min_share = min_share
        self._tokens: list[int] = []
        self._latest: dict[int, int] = {}  # by token: the latest place behind it
        self._earlier: list[int] = []  # by place - 1: the one before with the same last token; 0: none
        self._run = 0  # the last three tokens, in one number
        self._latest_run: dict[int, int] = {}  # as above, by such numbers
        self._earlier_run: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, token_ids: Sequence[int]) -> None:
        first, run = len(self._tokens) + 1, self._run
        self._tokens += token_ids
        for place, token_id in enumerate(token_ids, first):
            self._earlier.append(self._latest.get(token_id, 0))
            self._latest[token_id] = place
            run = (run << _BITS_PER_TOKEN | token_id) & _RUN_MASK
            self._earlier_run.append(self._latest_run.get(run, 0))
            self._latest_run[run] = place
        self._run = run

    def guess(self, max_num_tokens: int) -> Guess:
        if not self._tokens:
            return NO_GUESS
        found = self._longest_matches(self._earlier_run, _MOST_PLACES)
        if not found[1]:
            found = self._longest_matches(self._earlier, _FEW_PLACES)
        match_length, places = found
        limit = min(max_num_tokens, int(self._max_factor * match_length))
        return self._follow(places, limit, match_length) if places and limit else NO_GUESS

    def _longest_matches(self, earlier: list[int], most: int) -> tuple[int, list[int]]:
        """How many tokens before the end the best places share with it, and those places."""
        longest, places = 0, []
        for place in _chain(earlier, len(earlier), most):
            length = self._match_length(place, longest)
            if length > longest:
                longest, places = length, [place]
            elif length == longest:
                places.append(place)
        return longest, places

    def _match_length(self, place: int, at_least: int) -> int:
        """0: less than `at_least`."""
        tokens, end = self._tokens, len(self._tokens)
        most = min(self._max_match, place)
        if tokens[place - most : place] == tokens[end - most :]:
            return most  # as in text that is copied
        if at_least > most or tokens[place - at_least : place] != tokens[end - at_least :]:
            return 0
        length = at_least
        while length < most and tokens[place - length - 1] == tokens[end - length - 1]:
            length += 1
        return length

    def _follow(self, places: list[int], limit: int, match_length: int) -> Guess:
        """What most places go on with, as long as enough of them agree. A place may run into the guess itself."""
        run = self._tokens[places[0] : places[0] + limit]
        if len(run) == limit and all(self._tokens[place : place + limit] == run for place in places[1:]):
            return Guess(run, [1.0] * limit, match_length)
        guess, shares, num_places, num_tokens = list[int](), list[float](), len(places), len(self._tokens)
        for offset in range(limit):
            following = [
                self._tokens[place + offset] if place + offset < num_tokens else guess[place + offset - num_tokens]
                for place in places
            ]
            token_id = following[0]  # behind the latest place
            if following.count(token_id) < len(following):
                token_id = max(following, key=following.count)
                places = [place for place, own in zip(places, following, strict=True) if own == token_id]
                if len(places) < self._min_share * num_places:
                    break
            guess.append(token_id)
            shares.append(len(places) / num_places)
        return Guess(guess, shares, match_length)


def _chain(earlier: list[int], place: int, most: int) -> Iterator[int]:
    for _ in range(most):
        place = earlier[place - 1]
        if place == 0:
            return
        yield place
