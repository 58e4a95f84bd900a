"""Takes a picture of the page with a conversation in it: the one in the README.

    facet serve &                                                   # any server of ours; wait until it is ready
    python -m tools.screenshot http://127.0.0.1:8000 docs/page.png --attach shapes.png --about "What do you see?" \\
        --crowd 6

opens the page in Chromium without a window (`make browser` installs it), asks about a picture, then another question
with the example tools on, types a result into the card of the tool call, and takes the picture when the answer to that
is complete. Without --about, what is attached goes with the one question. With --crowd, so many other requests run
while the picture is taken, and the engine is seen at work. The question, the result, the theme and the size can be
chosen:

    python -m tools.screenshot URL docs/page-dark.png --theme dark
    python -m tools.screenshot URL docs/page-phone.png --size 390x844
    python -m tools.screenshot URL docs/page-pictures.png --size 390x844 --attach one.png two.png --unsent
    python -m tools.screenshot URL out.png --thinking --message "Is it cold in Oslo?" --result '{"sky": "snow"}'

Answers are greedy, so a picture can be made again. Without a tool call within --timeout seconds there is no picture,
but one line that says so; --no-tools asks for a plain answer. The fonts are the machine's: with Debian's `fonts-inter`
the picture looks as it does on most desktops. Needs the test dependencies (httpx).
"""

import argparse
import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from PIL import Image

from tools.webdriver import ENTER, Browser, WebDriverError, missing_programs, running_browser

MESSAGE = "What is the weather in Lisbon?"
RESULT = '{"temperature": 21, "sky": "sunny"}'
_SCALE = 2.0  # pixels per point: sharp on good screens and when shrunk


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.screenshot", description="A picture of the page.")
    parser.add_argument("url", help="where the server listens")
    parser.add_argument("file", type=Path, help="the PNG to write")
    parser.add_argument("--message", default=MESSAGE, help="the question (%(default)s)")
    parser.add_argument("--result", default=RESULT, help="what is typed into each tool call's card (%(default)s)")
    parser.add_argument("--attach", type=Path, nargs="+", default=[], help="pictures, sound or video to send along")
    parser.add_argument("--about", help="a question that goes before the other, with what is attached")
    parser.add_argument("--unsent", action="store_true", help="leave the question, with what is attached, in its field")
    parser.add_argument("--no-tools", action="store_true", help="offer no tools")
    parser.add_argument("--thinking", action="store_true", help="switch thinking on")
    parser.add_argument("--crowd", type=int, default=0, help="other requests that run while the picture is taken")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--size", default="1280x800", help="width and height of the page (%(default)s)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each answer (%(default)s)")
    return parser.parse_args(arguments)


def main() -> int:
    asked = parse()
    if missing := missing_programs():
        print(f"There is no {' and no '.join(missing)} here: make browser installs them.", file=sys.stderr)
        return 1
    try:
        with running_browser() as browser:
            picture = take(browser, asked)
    except WebDriverError as error:
        print(f"No picture: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    # A page has few colours; with a palette the file is a third as large.
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(asked.file, optimize=True)
    print(f"{asked.file}: {asked.file.stat().st_size / 1024:.0f} KiB")
    return 0


def take(browser: Browser, asked: argparse.Namespace) -> bytes:
    width, height = (int(part) for part in asked.size.split("x"))
    browser.timeout = asked.timeout
    browser.resize(width, height, scale=_SCALE)
    browser.prefer(asked.theme)
    browser.open(asked.url)
    browser.wait_for("#state:not([data-state=connecting]):not([data-state=lost])")
    _set(browser, "temperature", "0")
    if asked.thinking:
        browser.run("document.getElementById('thinking').click()")
    if not asked.no_tools:
        browser.run("document.getElementById('tools-example').click()")
    if asked.attach:
        browser.upload("#files", *[path.resolve() for path in asked.attach])
        last = f"#tray .attachment:nth-child({len(asked.attach)}) .cost"
        browser.wait_for(last, "tokens")
    if asked.unsent:
        browser.type("#message", asked.message)
        return browser.screenshot()
    num_answers = 1
    if asked.about:
        browser.type("#message", asked.about + ENTER)
        wait_for_answers(browser, num_answers)
        num_answers += 1
    browser.type("#message", asked.message + ENTER)
    if not asked.no_tools:
        browser.wait_for(".call textarea")
        for field in range(browser.count(".call textarea")):
            browser.type(f".call:nth-of-type({field + 1}) textarea", asked.result)
        browser.click(".calls:has(.call) button")
        num_answers += 1
    wait_for_answers(browser, num_answers)
    with crowd(asked.url, asked.crowd):
        time.sleep(5.0 if asked.crowd else 1.2)  # the live view comes once a second, and should show the last of it
        return browser.screenshot()


def wait_for_answers(browser: Browser, count: int) -> None:
    browser.wait(lambda: browser.count(".answer:not(.is-open)") == count, "the answer does not end")


@contextlib.contextmanager
def crowd(url: str, count: int) -> Iterator[None]:
    """So many requests that do not end until this does."""
    is_over = threading.Event()

    def ask(number: int) -> None:
        words = ["Once upon a time there was", *(f"guest {number}" for _ in range(20 * (number + 1)))]
        body = {"prompt": " ".join(words), "max_tokens": 400, "ignore_eos": True, "seed": number, "stream": True}
        while not is_over.is_set():
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
                if response.is_error:
                    return  # a small context, perhaps: then fewer guests
                for _ in response.iter_lines():
                    if is_over.is_set():
                        break

    guests = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for guest in guests:
        guest.start()
    try:
        yield
    finally:
        is_over.set()
        for guest in guests:
            guest.join()


def _set(browser: Browser, field: str, value: str) -> None:
    browser.run(
        "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        " field.dispatchEvent(new Event('input'))",
        field,
        value,
    )


if __name__ == "__main__":
    sys.exit(main())
