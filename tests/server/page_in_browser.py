"""The page in a browser, for its tests: what the model says to which question, and a hand on the page."""

from dataclasses import dataclass

from facet.tokens import Tokenizer
from tests.server.running import RunningServer
from tests.server.scripted_engine import ScriptedEngine
from tools.webdriver import ENTER, Browser

TIMEOUT = 60.0  # for what ends soon, on a machine with little to do
THOUGHT = "<|channel>thought\nThe wind is light.\n<channel|>"
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,unit:<|"|>celsius<|"|>}<tool_call|>'
HTML = "<img src=nothing onerror=\"document.title='gone'\"><b>bold</b> & <script>document.title='gone'</script>"
TABLE = "| a | b\\|c |\n|---|--:|\n| 1 | two"
MARKDOWN = f"# Plan\n\n1. one `two`\n2. **three**\n\n- four\n\n```\nfive  <six>\n```\nseven\n\n{TABLE}"
LINKS = {
    "a name": "https://one.example/a_(b)",
    "https://two.example/x?y=1": "https://two.example/x?y=1",
    "mail": "mailto:three@four.example",
    "a picture": "https://five.example/p.png",
}
NO_LINKS = (
    "[script](javascript:alert(1))",
    "[data](data:text/html,x)",
    "[file](file:///etc/passwd)",
    "[here](docs)",
    "[bank](https://bank.example@six.example)",
)
# What the model says, by a word of the question.
REPLIES = {
    "think": THOUGHT + "It is clear.",
    "result": "The tool said so.",
    "weather": CALL,
    "twice": CALL + CALL.replace("Paris", "Rome"),
    "html": HTML,
    "markdown": MARKDOWN,
    "links": "[a name](https://one.example/a_(b)), (https://two.example/x?y=1). [mail](mailto:three@four.example) "
    "![a picture](https://five.example/p.png) " + " ".join(NO_LINKS),
    "wide": "indented" * 60,
    "plain": "one two three",
}


@dataclass
class Page:
    """The page of a scripted server, open and empty."""

    browser: Browser
    server: RunningServer
    engine: ScriptedEngine
    tokenizer: Tokenizer

    def ask(self, text: str) -> None:
        self.browser.type("#message", text + ENTER)

    def answer(self) -> str:
        """The last answer, once it is complete."""
        self.wait_for_end()
        script = "return [...document.querySelectorAll('.answer .content')].at(-1).innerText"
        return str(self.browser.run(script))

    def wait_for_end(self) -> None:
        self.browser.wait(lambda: self.browser.is_shown("#send"), "the answer does not end")

    def last_prompt(self) -> str:
        return self.tokenizer.decode(self.engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


def start(browser: Browser, server: RunningServer) -> None:
    browser.open("about:blank")  # a page that goes on asking would be heard in the next test
    browser.timeout = TIMEOUT
    browser.resize(1280, 800)
    browser.prefer("light")
    browser.devtools("Storage.clearDataForOrigin", origin=server.url, storageTypes="all")
    browser.open(server.url)
    browser.console()
    browser.requested_urls()
