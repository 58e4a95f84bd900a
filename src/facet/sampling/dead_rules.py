"""Finds rules of a grammar that no text can complete, such as `root ::= root`.

It reads a grammar as the grammar library prints it: one rule to a line, each a choice of sequences.
"""

import re
from collections import defaultdict

_RULE = re.compile(r"^(?P<name>[\w.-]+)(?:\[[^\]]*\])? ::= (?P<body>.*)$", re.MULTILINE)
_ELEMENT = re.compile(
    r'(?P<nothing>\[\](?!\*))|"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]\*?|\w+\([^()]*\)'
    r"|(?P<name>[\w.-]+)(?:\{(?P<least>\d+),[^}]*\})?|(?P<sign>[()|])"
)


def find_dead_rule(grammar: str) -> str | None:
    """A rule that can be reached and never be completed. None: there is none. Linear in the length of the grammar."""
    choices = {rule["name"]: _choices(rule["body"]) for rule in _RULE.finditer(grammar)}
    waiting: dict[str, list[tuple[str, set[str]]]] = defaultdict(list)  # sequences, by a rule that each needs
    ready = []
    for name, sequences in choices.items():
        for needs in sequences:
            unmet = set(needs)
            for needed in needs:
                waiting[needed].append((name, unmet))
            if not unmet:
                ready.append(name)
    complete: set[str] = set()
    while ready:
        name = ready.pop()
        if name in complete:
            continue
        complete.add(name)
        for owner, unmet in waiting.pop(name, []):
            unmet.discard(name)
            if not unmet:
                ready.append(owner)
    reached, to_visit = {"root"}, ["root"]
    while to_visit:
        name = to_visit.pop()
        if name not in complete:
            return name
        for needs in choices[name]:
            to_visit += needs - reached
            reached |= needs
    return None


def _choices(body: str) -> list[set[str]]:
    """The rules that each sequence needs."""
    if not body.startswith("("):
        return [set()]  # a regular expression, or a dispatch, which text can always pass by
    choices: list[set[str]] = []
    needs: set[str] = set()
    depth, is_possible = 0, True
    for element in _ELEMENT.finditer(body):
        if element["nothing"]:
            is_possible = False
        elif element["name"] and element["least"] != "0":
            needs.add(element["name"])
        elif element["sign"]:
            depth += {"(": 1, ")": -1, "|": 0}[element["sign"]]
        if element["sign"] in ("|", ")") and depth < 2 and (element["sign"] == "|" or depth == 0):
            choices += [needs] if is_possible else []
            needs, is_possible = set(), True
            if depth == 0:
                break  # what follows is a hint about the text behind the rule
    return choices
