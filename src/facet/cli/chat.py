"""`facet chat [MODEL]`: a conversation in the terminal, or line by line in a pipe."""

import argparse
import contextlib
from dataclasses import dataclass

from facet.cli.answers import ChatAnswer
from facet.cli.any_text import utf8_text
from facet.cli.asking import UNLISTED, Answerer, AskConfig, ask_config_from, open_answerer, read_tools
from facet.cli.chat_commands import LEAVE, completions, run_command
from facet.cli.conversation import Conversation
from facet.cli.flags import add_common_flags, add_config_flags
from facet.cli.screen import Screen
from facet.errors import ConfigError, EngineError, UserError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("chat", help="chat with a model in the terminal")
    add_config_flags(parser, AskConfig, one_at_a_time=("lora_modules",), unlisted=UNLISTED)
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    config, name = ask_config_from(options, AskConfig)
    tools = [] if config.tools is None else read_tools(config.tools)
    screen = Screen()
    if screen.is_interactive:
        _make_editable()
    if config.url is None:
        screen.note(f"Loading {name} ...")
    with open_answerer(config, name) as answerer:
        if not answerer.has_template:
            raise ConfigError(f"{name} has no chat template. Continue a text with `facet complete --raw` instead.")
        conversation = Conversation(answerer.model, config.system, tools, config.think, config.answer_settings())
        length = "" if answerer.context_length is None else f", {answerer.context_length:,} tokens of context"
        screen.note(f"{answerer.model}{length}. Ctrl-C stops an answer, /help lists commands, /exit leaves.")
        Session(answerer, conversation, screen).run()
    return 0


def _make_editable() -> None:
    """Lets lines be edited from here on, and Tab complete commands."""
    try:
        import readline
    except ImportError:
        return

    def complete(word: str, index: int) -> str | None:
        found = completions(readline.get_line_buffer())
        return found[index] if index < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


@dataclass(slots=True)
class Session:
    """Reads lines until the user leaves."""

    answerer: Answerer
    conversation: Conversation
    screen: Screen
    was_interrupted: bool = False  # whether Ctrl-C was the last thing that the user did

    def run(self) -> None:
        while True:
            try:
                line = self.screen.ask("> ").strip()
                self.was_interrupted = False
                if line in LEAVE:
                    return
                if line:
                    self._take(line)
            except EOFError:
                self.screen.note("")
                return
            except KeyboardInterrupt:
                if self.was_interrupted:
                    return
                self._interrupt("Press Ctrl-C again or type /exit to leave.")

    def _take(self, line: str) -> None:
        """Takes a line. On failure only the last message is forgotten."""
        num_messages = len(self.conversation.messages)
        try:
            if line.startswith("/") and not line.startswith("//"):
                self.screen.tell(run_command(line, self.conversation))
                return
            text = utf8_text(line, "The message")
            self.conversation.say(text.removeprefix("/") if text.startswith("//") else text)
            self._converse(num_messages)
        except (UserError, EngineError) as error:
            self.conversation.forget_from(num_messages)
            self.screen.end()
            self.screen.complain(str(error))

    def _converse(self, num_messages: int) -> None:
        """Continues until the model answers without calling a tool."""
        while True:
            answer = self._answer()
            if answer.finish_reason is None and not answer.reply.content:
                self.conversation.forget_from(
                    num_messages
                )  # stopped before the first word: as if nothing had been sent
                return
            self.conversation.hear(answer)
            if answer.finish_reason == "length":
                self.screen.note("(cut off at the maximum number of tokens)")
            calls = answer.calls_to_make
            if not calls:
                return
            self.screen.calls(calls)
            try:
                for call in calls:
                    result = self.screen.ask(f"result of {call.function.name}> ")
                    self.conversation.give_result(call, utf8_text(result, "The result"))
            except KeyboardInterrupt:
                self.conversation.forget_from(num_messages)  # a call without a result leads nowhere
                self._interrupt("Your last message is withdrawn.")
                return

    def _answer(self) -> ChatAnswer:
        """Shows one answer as it arrives. Ctrl-C stops it; what has arrived is kept."""
        answer = ChatAnswer()
        events = self.answerer.client.stream("/v1/chat/completions", self.conversation.body())
        with contextlib.closing(events):  # on the server too
            try:
                for delta in answer.read(events):
                    self.screen.show(delta)
            except KeyboardInterrupt:
                answer.finish_reason = None
                self.screen.end()
                self._interrupt("(stopped)")
        self.screen.end()
        return answer

    def _interrupt(self, note: str) -> None:
        self.was_interrupted = True
        self.screen.end()
        self.screen.note(note)
