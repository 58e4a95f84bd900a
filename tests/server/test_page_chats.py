"""The page's memory and its layout, in Chromium: conversations that are kept, changed and deleted, and a phone."""

import json
from typing import Any

import pytest

from tests.server.page_in_browser import Page
from tools.webdriver import BACKSPACE, ENTER, ESCAPE

KEPT = (
    "return Object.keys(localStorage).filter(name => name.startsWith('facet.chat.'))"
    ".map(name => JSON.parse(localStorage[name]))"
)


def kept(page: Page) -> list[Any]:
    """The chats in the browser's memory, the newest first."""
    return sorted(page.browser.run(KEPT), key=lambda chat: -chat["time"])


def shown(page: Page) -> list[str]:
    """What the messages say."""
    script = "return [...document.querySelectorAll('.user .text, .answer .content')].map(each => each.innerText)"
    return [str(text) for text in page.browser.run(script)]


def names(page: Page) -> list[str]:
    """Of the chats in the list."""
    script = "return [...document.querySelectorAll('#chats li .name')].map(each => each.innerText)"
    return [str(name) for name in page.browser.run(script)]


def test_a_conversation_survives_a_reload(page: Page) -> None:
    page.browser.click("#tools-button")
    page.browser.click("#tools-example")
    page.ask("weather")
    page.browser.wait_for(".call textarea")
    page.browser.reload()
    page.browser.wait_for(".call textarea")  # and it still waits for the result
    page.browser.type(".call textarea", "clear" + ENTER)
    page.browser.wait(lambda: page.browser.count(".answer") == 2)
    assert page.answer() == "The tool said so."
    facts = page.browser.text(".answer:last-child .facts span")
    before = page.last_prompt()
    page.browser.reload()
    page.browser.wait(lambda: page.browser.count(".answer") == 2)
    assert page.browser.value(".call textarea") == "clear"
    assert page.browser.run("return document.querySelector('.call textarea').readOnly")
    assert page.browser.text(".answer:last-child .facts span") == facts != ""
    page.ask("plain")
    page.browser.wait(lambda: page.browser.count(".answer") == 3)
    page.wait_for_end()
    assert page.last_prompt() == (
        before + "The tool said so.<turn|>\n<|turn>user\nplain<turn|>\n<|turn>model\n"
    ).replace("<|turn>model\nThe", "<|turn>assistant\nThe")


def test_a_reload_while_an_answer_comes(page: Page) -> None:
    page.ask("long")
    page.browser.wait_for(".answer .content p")
    page.browser.reload()
    page.browser.wait_for(".facts", "interrupted")
    assert page.browser.text(".answer .content") != ""
    page.engine.gate.clear()
    page.browser.click("#new-chat")
    page.ask("plain")
    page.browser.wait_for(".user", "plain")
    page.browser.reload()
    page.engine.gate.set()
    page.browser.wait_for(".error", "interrupted")
    page.browser.click(".error .retry")
    assert page.answer() == "one two three"
    assert shown(page) == ["plain", "one two three"]


def test_chats_have_names_and_can_be_deleted(page: Page) -> None:
    page.ask("plain and first")
    page.wait_for_end()
    page.browser.click("#new-chat")
    assert page.browser.count(".message") == 0
    page.ask("plain and second")
    page.wait_for_end()
    page.browser.click("#chats-button")
    assert names(page) == ["plain and second", "plain and first"]
    page.browser.click("#chats li:last-child .rename")
    page.browser.press(BACKSPACE + "<b>My</b> name" + ENTER)
    assert names(page) == ["plain and second", "<b>My</b> name"]
    page.browser.click("#chats li:last-child .rename")
    page.browser.press("no" + ESCAPE)
    page.browser.click("#chats li:last-child .open")
    assert shown(page) == ["plain and first", "one two three"]
    page.ask("plain again")
    page.browser.wait(lambda: page.browser.count(".answer") == 2)
    page.wait_for_end()
    page.browser.reload()
    page.browser.wait(lambda: page.browser.count(".answer") == 2)
    page.browser.click("#chats-button")
    assert names(page) == ["<b>My</b> name", "plain and second"], "the name stays, the last that was used is first"
    page.browser.click("#chats li:first-child .delete")
    assert len(kept(page)) == 2, "only the second click deletes"
    page.browser.click("#chats li:first-child .delete")
    assert names(page) == [chat["messages"][0]["content"] for chat in kept(page)] == ["plain and second"]
    page.browser.click("#chats-close")
    assert page.browser.count(".message") == 0


def test_memory_is_bounded(page: Page) -> None:
    """The oldest are given up, by number and by size; a conversation that is too long by itself is said so."""
    fill = (
        "for (let at = 0; at < 60; at++) localStorage.setItem(`facet.chat.${at}`, JSON.stringify({id: `${at}`,"
        " time: at + 1, messages: [{role: 'user', content: 'x'.repeat(arguments[0])}]}))"
    )
    page.browser.run(fill, 10)
    page.ask("plain")
    page.wait_for_end()
    assert len(kept(page)) == 50
    assert [chat["time"] for chat in kept(page)[1:]] == list(range(60, 11, -1))
    page.browser.run("localStorage.clear();" + fill, 80_000)
    page.browser.click("#new-chat")
    page.ask("plain")
    page.wait_for_end()
    assert len(kept(page)) == 1 + 24
    assert sum(len(json.dumps(chat)) for chat in kept(page)) < 2_100_000
    page.browser.run("document.getElementById('message').value = 'plain ' + 'x'.repeat(2_000_000)")
    page.browser.click("#send")
    page.browser.wait_for("#notice", "no room for this conversation")
    page.browser.wait_for(".error")
    page.browser.console()  # the browser's own line about a prompt that is too long


def test_an_earlier_message_is_changed(page: Page) -> None:
    for number, text in enumerate(("plain first", "plain second"), 1):
        page.ask(text)
        page.browser.wait(lambda number=number: page.browser.count(".answer") == number)  # type: ignore[misc]
        page.wait_for_end()
    edit = "document.querySelector('.user .edit').click()"
    page.browser.run(edit)
    page.browser.wait_for("#editing")
    assert page.browser.value("#message") == "plain first"
    page.browser.press(ESCAPE)
    assert (page.browser.value("#message"), page.browser.is_shown("#editing")) == ("", False)
    assert len(shown(page)) == 4, "nothing is lost yet"
    page.browser.run(edit)
    page.browser.press(" but other" + ENTER)
    page.browser.wait(lambda: page.browser.count(".answer") == 1)
    page.wait_for_end()
    assert shown(page) == ["plain first but other", "one two three"]
    assert page.last_prompt().count("<|turn>user") == 1
    assert [message["content"] for message in kept(page)[0]["messages"]] == shown(page)


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_copying(page: Page, has_clipboard: bool) -> None:
    """Without HTTPS, and not from this machine, a page has no clipboard object."""
    page.browser.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.ask("markdown")
    page.wait_for_end()
    if not has_clipboard:
        page.browser.run("Object.defineProperty(navigator, 'clipboard', {value: null})")
    page.browser.click(".facts .copy")
    page.browser.wait_for(".facts .copy", "Copied")
    page.browser.run("document.getElementById('message').focus(); document.execCommand('paste')")
    page.browser.devtools("Input.dispatchKeyEvent", type="keyDown", commands=["paste"])
    page.browser.wait(lambda: "seven" in page.browser.value("#message"), "nothing is pasted")
    assert page.browser.value("#message").startswith("# Plan")


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_every_button_keeps_one_line(page: Page, width: int) -> None:
    page.browser.resize(width, 700)
    script = (
        "return [...document.querySelectorAll('button')].filter(each => each.checkVisibility()"
        " && !each.matches('.open')"
        " && (each.getClientRects()[0].height > 44 || each.scrollWidth > each.clientWidth"
        " || each.getBoundingClientRect().right > innerWidth)).map(each => each.textContent)"
    )
    assert page.browser.run(script) == []
    page.browser.click("#tools-button")
    page.browser.click("#tools-example")
    if width < 900:
        page.browser.click("#panel-button")
    page.ask("twice")
    page.browser.wait_for(".calls button", "Send results")
    assert page.browser.run(script) == []
    page.browser.click("#chats-button")
    assert page.browser.run(script) == []
    page.browser.click("#chats-close")


@pytest.mark.parametrize("width", [320, 768])
def test_no_sideways_scrolling_on_a_phone(page: Page, width: int) -> None:
    def overflow() -> int:
        script = "return document.documentElement.scrollWidth - innerWidth"
        inner = "return Math.max(...['conversation', 'panel'].map(document.getElementById, document).map(e => e.scrollWidth - e.clientWidth))"  # noqa: E501
        return max(int(page.browser.run(script)), int(page.browser.run(inner)))

    page.browser.resize(width, 700)
    assert overflow() <= 0
    page.ask("wide" * 60)
    page.wait_for_end()
    assert overflow() <= 0
    page.browser.click("#tools-button")
    page.browser.click("#tools-example")
    page.browser.click("#settings-card summary")
    assert not page.browser.is_shown("#message")
    assert overflow() <= 0
    page.browser.click("#panel-button")
    assert page.browser.is_shown("#message")
