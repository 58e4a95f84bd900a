"""The page as people use it, in Chromium without a window.

Skipped where there is no Chromium: `make browser` says how to get it.
"""

import re
import struct
import threading

import pytest

from facet.adapter import AdapterSource
from facet.tokens import Tokenizer
from tests.server.conftest import Scripted
from tests.server.page_in_browser import HTML, LINKS, NO_LINKS, Page, start
from tests.server.running import RunningServer, wait_until
from tools.screenshot import parse, take
from tools.webdriver import ENTER, ESCAPE, SHIFT, TAB, Browser


def test_it_loads_by_itself(page: Page) -> None:
    """Nothing to complain about, and nothing from elsewhere; the model's name shows that it is connected."""
    page.browser.reload()
    page.browser.wait_for("#model", "tiny")
    addresses = page.browser.requested_urls()
    assert len(addresses) >= 10
    assert {address for address in addresses if not address.startswith(page.server.url)} == set()
    assert page.browser.run("return document.activeElement.id") == "message"
    assert page.browser.count("button:not([type])") == 0
    names = page.browser.run(
        "return [...document.querySelectorAll('button, textarea, input, select')].filter(each =>"
        " !(each.ariaLabel || each.textContent.trim() || each.labels?.length)).map(each => each.id)"
    )
    assert names == [], "everything that can be operated has a name"
    assert not page.browser.is_shown("#models"), "there is nothing to choose"


def test_an_answer_streams_in(page: Page) -> None:
    num_asked = len(page.engine.submitted)
    page.engine.gate.clear()
    page.ask("plain")
    page.browser.wait_for(".user", "plain")
    wait_until(lambda: len(page.engine.submitted) == num_asked + 1)
    assert page.browser.is_shown("#stop")
    page.engine.gate.set()
    assert page.answer() == "one two three"
    assert "tokens" in page.browser.text(".facts")
    page.ask("plain again")
    page.browser.wait(lambda: page.browser.count(".answer") == 2)
    assert page.answer() == "one two three"
    assert page.last_prompt() == (
        "<bos><|turn>user\nplain<turn|>\n<|turn>assistant\none two three<turn|>\n<|turn>user\nplain again<turn|>\n"
        "<|turn>model\n"
    )


@pytest.mark.parametrize("by", ["key", "button"])
def test_stopping(page: Page, by: str) -> None:
    num_cancelled = len(page.engine.cancelled)
    page.ask("long")
    page.browser.wait_for(".answer .content p")
    if by == "key":
        page.browser.press(ESCAPE)
    else:
        page.browser.click("#stop")
    page.wait_for_end()
    wait_until(lambda: len(page.engine.cancelled) == num_cancelled + 1)
    assert page.browser.text(".facts").startswith("stopped")
    assert page.browser.text(".answer .content") != ""


def test_stopping_before_the_first_token(page: Page) -> None:
    page.engine.gate.clear()
    page.ask("plain")
    page.browser.press(ESCAPE)
    page.wait_for_end()
    page.engine.gate.set()
    assert page.browser.text(".facts span") == "stopped"
    page.browser.click(".facts .retry")
    assert page.answer() == "one two three"
    assert page.browser.count(".answer") == 1


def test_thoughts_are_folded(page: Page) -> None:
    page.browser.run("document.getElementById('thinking').focus()")
    page.browser.press(" ")
    page.ask("think")
    assert page.answer() == "It is clear."
    assert "<|think|>" in page.last_prompt()
    assert page.browser.text(".thoughts .text") == "The wind is light."
    assert not page.browser.is_shown(".thoughts .text")
    page.browser.click(".thoughts summary")
    assert page.browser.is_shown(".thoughts .text")


def test_a_call_becomes_a_card_and_its_result_goes_back(page: Page) -> None:
    page.browser.click("#tools-button")
    page.browser.click("#tools-example")
    page.browser.wait_for("#tools-message", "get_weather")
    page.ask("weather")
    page.browser.wait_for(".call .name", "get_weather")
    page.browser.wait_for(".call textarea")
    assert page.browser.run("return document.querySelector('.arguments').innerText").split() == [
        "city", '"Paris"', "unit", '"celsius"',
    ]  # fmt: skip
    assert "get_weather" in page.last_prompt()
    page.ask("never mind")  # the model waits for something else
    page.browser.wait_for("#notice", "waiting for a tool result")
    page.browser.type(".call textarea", '{"sky": "clear"}' + ENTER)
    page.browser.wait(lambda: page.browser.count(".answer") == 2)
    assert page.answer() == "The tool said so."
    assert '<|tool_call>get_weather<tool_call|><turn|>\n<|turn>tool\n{"sky": "clear"}<turn|>' in page.last_prompt()
    assert page.browser.run("return document.querySelector('.call textarea').readOnly")
    assert not page.browser.is_shown(".calls button")


def test_two_calls_have_a_result_each(page: Page) -> None:
    page.browser.click("#tools-button")
    page.browser.click("#tools-example")
    page.ask("twice")
    page.browser.wait_for(".calls button", "Send results")
    page.browser.press("sunny" + ENTER)
    page.browser.press("rainy" + ENTER)  # Enter went on to the second field
    page.browser.wait(lambda: page.browser.count(".answer") == 2)
    page.wait_for_end()
    assert "<|turn>tool\nsunny<turn|>\n<|turn>tool\nrainy<turn|>" in page.last_prompt()


def test_tools_that_cannot_be_used(page: Page) -> None:
    num_asked = len(page.engine.submitted)
    page.browser.click("#tools-button")
    for text, words in (
        ("[{", "not valid JSON yet"),
        ('[{"parameters": {}}]', "Tool 1 has no name"),
        ('{"name": "a b"}', 'called "a b"'),
        ('[{"name": "a"}, {"type": "function", "function": {"name": "a"}}]', "Two tools are called a"),
        ('{"name": "a", "parameters": []}', "not a JSON schema object"),
    ):
        page.browser.click("#tools-clear")
        page.browser.type("#tools", text)
        page.browser.wait_for("#tools-message.wrong", words)
    page.ask("plain")
    page.browser.wait_for("#notice", "not a JSON schema object")
    assert page.browser.value("#message") == "plain", "what was written is not lost"
    page.browser.click("#tools-clear")
    page.browser.click("#send")
    assert page.answer() == "one two three"
    assert len(page.engine.submitted) == num_asked + 1


def test_settings_reach_the_engine(page: Page) -> None:
    page.browser.click("#settings-card summary")
    for field, value in (("system", "Be brief."), ("temperature", "0.5"), ("top_p", "0.9"), ("top_k", "7")):
        page.browser.type(f"#{field}", value)
    page.browser.type("#max_tokens", "2")
    page.browser.type("#seed", "11")
    page.ask("plain")
    page.wait_for_end()
    sampling = page.engine.submitted[-1].sampling
    chosen = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens, sampling.seed)
    assert chosen == (0.5, 0.9, 7, 2, 11)
    assert page.last_prompt().startswith("<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nplain")
    assert "cut off" in page.browser.text(".facts")
    page.browser.reload()
    assert page.browser.value("#temperature") == "0.5", "remembered"
    page.browser.click("#settings-card summary")
    page.browser.type("#max_tokens", ".5")
    page.ask("plain")
    page.browser.wait_for("#notice", "Max tokens")
    page.browser.click("#settings-reset")
    page.browser.click("#send")
    assert page.answer() == "one two three"


def test_what_a_model_writes_is_text(page: Page) -> None:
    page.ask("html")
    assert page.answer() == HTML
    assert page.browser.count(".content img, .content b, .content script") == 0
    assert page.browser.run("return document.title") == "Facet"
    page.ask("<i>html</i>")
    page.browser.wait(lambda: page.browser.count(".user") == 2)
    assert page.browser.count(".user i") == 0
    page.wait_for_end()


def test_plain_markdown_has_its_form(page: Page) -> None:
    page.ask("markdown")
    page.wait_for_end()
    blocks = page.browser.run(
        "return [...document.querySelector('.content').children].map(e => [e.localName, e.innerText])"
    )
    assert blocks == [
        ["h4", "Plan"],
        ["ol", "one two\nthree"],
        ["ul", "four"],
        ["pre", "five  <six>"],
        ["p", "seven"],
        ["div", "a\tb|c\n1\ttwo"],
    ]
    assert page.browser.text(".content code") == "two"
    assert page.browser.text(".content strong") == "three"
    assert page.browser.count(".content th.right, .content td.right") == 2


def test_links_lead_only_where_they_may(page: Page) -> None:
    page.ask("links")
    page.wait_for_end()
    links = page.browser.run(
        "return [...document.querySelectorAll('.content a')].map(a => [a.textContent, a.href, a.target, a.rel])"
    )
    assert links == [[words, url, "_blank", "noopener noreferrer"] for words, url in LINKS.items()]
    assert page.browser.count(".content img") == 0
    for text in NO_LINKS:
        assert text in page.answer()


def test_an_error_of_the_server_is_shown_and_can_be_tried_again(page: Page) -> None:
    page.browser.click("#settings-card summary")
    page.browser.type("#seed", "1e30")
    page.ask("plain")
    page.browser.wait_for(".error", "seed")
    assert page.browser.count(".answer") == 0
    assert any("400" in line for line in page.browser.console()), "the browser's own line about it"
    page.browser.click("#settings-reset")
    page.browser.click(".error .retry")
    assert page.answer() == "one two three"
    assert page.browser.count(".error") == 0


def test_an_answer_that_fails_on_its_way(page: Page) -> None:
    page.engine.fail_after = 4
    page.ask("long")
    page.browser.wait_for(".error", "logits held NaN")
    assert page.browser.text(".answer .content") != "", "what came before stays"
    page.engine.fail_after = None
    page.browser.click("#new-chat")
    assert page.browser.count(".message") == 0
    assert page.browser.is_shown("#welcome")


def test_retry_asks_the_same_again(page: Page) -> None:
    page.ask("plain")
    page.wait_for_end()
    first = page.last_prompt()
    num_asked = len(page.engine.submitted)
    page.browser.click(".facts .retry")
    wait_until(lambda: len(page.engine.submitted) == num_asked + 1)
    assert page.answer() == "one two three"
    assert page.last_prompt() == first
    assert page.browser.count(".answer") == 1


def test_a_browser_that_remembers_nonsense(page: Page) -> None:
    page.browser.run("localStorage.setItem('facet.settings', '{'); localStorage.setItem('facet.theme', 'blue')")
    page.browser.reload()
    page.ask("plain")
    assert page.answer() == "one two three"


def test_a_new_chat_while_an_answer_comes(page: Page) -> None:
    page.ask("long")
    page.browser.wait_for(".answer .content p")
    page.browser.click("#new-chat")
    page.wait_for_end()
    assert page.browser.count(".message") == 0
    page.ask("plain")
    assert page.answer() == "one two three"
    assert page.last_prompt().count("<|turn>user") == 1


def test_keys(page: Page) -> None:
    page.browser.type("#message", "plain" + SHIFT + ENTER + SHIFT + "and more")
    assert page.browser.value("#message") == "plain\nand more"
    page.browser.press(TAB)
    for _ in range(4):
        outline = page.browser.run(
            "let seen = document.activeElement; if (seen.matches('.switch input')) seen = seen.nextElementSibling;"
            " return getComputedStyle(seen).outlineStyle"
        )
        assert outline == "solid", "the focus can be seen"
        page.browser.press(TAB)
    page.ask("")
    page.browser.wait_for(".user", "plain\nand more")
    assert page.answer() == "one two three"


def test_light_and_dark(page: Page) -> None:
    def brightness() -> int:
        colour = page.browser.run("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    assert brightness() > 700
    page.browser.prefer("dark")
    page.browser.wait(lambda: brightness() < 100)
    page.browser.click("#theme-button")
    assert brightness() > 700
    page.browser.reload()
    assert brightness() > 700, "remembered, whatever the system says"
    page.browser.click("#theme-button")
    assert brightness() < 100


def test_the_picture_for_the_readme(page: Page) -> None:
    asked = parse([page.server.url, "unused.png", "--message", "weather", "--result", "clear"])
    picture = take(page.browser, asked)
    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">II", picture[16:24]) == (2560, 1600)
    assert "<|turn>tool\nclear<turn|>" in page.last_prompt()
    assert page.engine.submitted[-1].sampling.temperature == 0


def test_an_adapter_is_chosen_and_goes(browser: Browser, scripted: Scripted, tokenizer: Tokenizer) -> None:
    name = "<b>poet</b>"

    def options() -> list[str]:
        return [str(text) for text in browser.run("return [...document.querySelectorAll('option')].map(o => o.text)")]

    def asked() -> str | None:
        """The adapter of one more request."""
        num_asked = len(engine.submitted)
        page.ask("plain")
        wait_until(lambda: len(engine.submitted) > num_asked)
        assert page.answer() == "one two three"
        return engine.submitted[-1].adapter

    adapters = {"clerk": "/adapters/clerk", name: "/adapters/poet"}
    with scripted("one two three", engine={"adapters": adapters}) as (server, engine):
        start(browser, server)
        page = Page(browser, server, engine, tokenizer)
        browser.wait_for("#models")
        assert options() == ["tiny", "clerk", name]
        assert not browser.is_shown("#model")
        assert asked() is None
        assert "adapter" not in browser.text(".facts span")
        browser.type("#models", name)
        assert asked() == name
        facts = browser.text(".answer:last-child .facts span")
        assert facts.startswith(f"adapter {name} · ")
        browser.reload()
        browser.wait(lambda: browser.count(".answer") == 2)
        assert browser.text(".answer:last-child .facts span") == facts
        assert asked() == name, "remembered"

        engine.unload_adapter(name)
        browser.wait_for("#notice", f"no longer has the adapter {name}")
        assert (options(), browser.value("#models")) == (["tiny", "clerk"], "")
        assert asked() is None
        engine.load_adapter(AdapterSource(name, "/adapters/poet"))
        browser.wait(lambda: browser.value("#models") == name)
        assert asked() == name, "it is back"
        for gone in (name, "clerk"):
            engine.unload_adapter(gone)
        browser.wait_for("#model", "tiny")
        assert not browser.is_shown("#models")
        assert asked() is None
        assert browser.console() == []
        browser.open("about:blank")


def test_the_key_is_asked_for_and_kept_for_the_tab(browser: Browser, scripted: Scripted) -> None:
    with scripted("one two three", api_key=("right",)) as (server, _):
        start(browser, server)
        browser.type("#key", "wrong" + ENTER)
        browser.wait(lambda: browser.is_shown("#key") and not browser.value("#key"))
        browser.type("#key", "right" + ENTER)
        browser.wait_for("#model", "tiny")
        assert not browser.is_shown("#key-dialog")
        browser.reload()
        browser.wait_for("#model", "tiny")
        assert not browser.is_shown("#key-dialog")
        assert browser.run("return JSON.stringify(localStorage)").find("right") == -1
        browser.type("#message", "plain" + ENTER)
        browser.wait_for(".content", "one two three")
        browser.console()  # the browser's own lines about 401


def test_the_end_of_the_engine_is_shown(browser: Browser, scripted: Scripted) -> None:
    with scripted("one") as (server, engine):
        start(browser, server)
        browser.wait_for("#model", "tiny")
        engine.die()
        browser.wait_for("#model", "it was told to")
        browser.open("about:blank")
        browser.console()


def test_the_real_engine_answers_and_its_live_view_moves(browser: Browser, real_server: RunningServer) -> None:
    start(browser, real_server)
    browser.wait_for("#model", "tiny")
    browser.click("#settings-card summary")
    browser.type("#max_tokens", "200")
    # A crowd beside the page, so that there is something to see.
    body = {"prompt": [[5 + at] * 40 for at in range(8)], "max_tokens": 250, "ignore_eos": True}
    crowd = threading.Thread(target=real_server.post, args=("/v1/completions", body))
    crowd.start()
    browser.type("#message", "one two" + ENTER)

    def number(selector: str) -> int:
        return int(browser.text(selector).replace(",", "") or 0)

    browser.timeout = 30
    browser.wait(lambda: number("#running") > 0, "nothing is seen to run")
    browser.wait(lambda: number("[data-kind=sliding] dd") > 0, "no page is seen to be in use")
    browser.wait(lambda: number("#tokens-per-second") > 0, "no token is seen to come")
    browser.wait_for("#step-time", "s")
    colours = (
        "const c = document.getElementById('arena'); return [...new Set(new Uint32Array(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.buffer))].length"
    )
    assert browser.run(colours) > 3, "the arena is drawn"
    browser.wait(lambda: browser.is_shown("#send"), "the answer does not end")
    assert len(browser.text(".content")) > 0
    crowd.join()
    browser.wait(lambda: number("#running") == 0)
    browser.wait(lambda: number("[data-kind=cached] dd") > 0)
    assert re.fullmatch(
        r"The \d+ pages of the KV cache: .*", browser.run("return document.getElementById('arena').ariaLabel")
    )
    assert browser.console() == []
