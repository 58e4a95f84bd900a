"""The tokenizer that `LLM.get_tokenizer` returns, with the methods that programs call on one of transformers.

They take and return what those do, for one model and without padding: token ids are plain lists.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from facet.chat.formats import ReplyMarkers
from facet.chat.messages import normalize_messages
from facet.chat.template import ChatTemplate
from facet.chat.tool_choice import normalize_tools, template_variables
from facet.errors import RequestError
from facet.media_span import MediaKind
from facet.offline.arguments import as_conversations, as_documents
from facet.offline.call_template import with_template
from facet.offline.given_values import as_list
from facet.prompts import AskedModel
from facet.prompts.continuing import cut_at, mark_end
from facet.tokens.prompt_text import PromptText

# Arguments of transformers' `apply_chat_template`: a template must not take them for variables of its own.
_NOT_VARIABLES = (
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_tensors",
    "tokenizer_kwargs",
    "truncation",
)


class Encoding(dict[str, Any]):
    """The tokens of a text, or of each of several, as items and as attributes."""

    @classmethod
    def of(cls, token_ids: Any) -> "Encoding":
        are_several = bool(token_ids) and isinstance(token_ids[0], list)
        mask = [[1] * len(ids) for ids in token_ids] if are_several else [1] * len(token_ids)
        return cls(input_ids=token_ids, attention_mask=mask)

    @property
    def input_ids(self) -> Any:
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        """All ones, because nothing is padded."""
        return self["attention_mask"]


class ModelTokenizer:
    """Immutable; threads may share it."""

    def __init__(self, asked: AskedModel) -> None:
        self._asked = asked
        self._tokenizer = asked.require_tokenizer()

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def vocab_size(self) -> int:
        """The same as `len`: added tokens count."""
        return len(self)

    @property
    def bos_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of(self.bos_token)

    @property
    def eos_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of(self.eos_token)

    @property
    def pad_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        return self._id_of(self.pad_token)

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self._tokenizer.special_ids)

    @property
    def chat_template(self) -> str | None:
        return None if self._asked.template is None else self._asked.template.source

    def get_vocab(self) -> dict[str, int]:
        """Token ids by the tokens' spellings in the vocabulary."""
        return dict(self._vocabulary)

    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The ids of tokens by their spellings in the vocabulary; one for one, a list for several. Others are the
        unknown token."""
        if isinstance(tokens, str):
            found = self._tokenizer.token_to_id(tokens)
            return self._id_of(self._tokenizer.special_tokens.get("unk_token")) if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """The tokens' spellings in the vocabulary; None for an id past its end."""
        listed = as_list(ids)
        if listed is None:
            return self._tokenizer.id_to_token(ids)
        return [self._tokenizer.id_to_token(token_id) for token_id in listed]

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> Encoding:
        """Token ids of a text, or a list of them for each of several."""
        if isinstance(text, str):
            return Encoding.of(self.encode(text, add_special_tokens=add_special_tokens))
        return Encoding.of([self.encode(one, add_special_tokens=add_special_tokens) for one in text])

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written out in it are recognised.

        `add_special_tokens` adds what the model expects around a text: <bos>, even if the text begins with it.
        """
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def tokenize(self, text: str) -> list[str]:
        """The spellings of a text's tokens, nothing added around it."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens=False))  # type: ignore[no-any-return]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> Any:
        """The text of token ids, or of one; a list of texts for several lists."""
        listed = as_list(token_ids)
        if listed is None:
            listed = [token_ids]
        if listed and as_list(listed[0]) is not None:
            return self.batch_decode(listed, skip_special_tokens=skip_special_tokens)
        return self._tokenizer.decode(listed, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Any], *, skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(one, skip_special_tokens=skip_special_tokens) for one in sequences]

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        *,
        return_dict: bool = True,
        **variables: Any,
    ) -> Any:
        """The prompt of a conversation, or of each of several: token ids, or with `tokenize=False` its text.

        Pictures, sound and video become placeholders, for `multi_modal_data` beside the text; they are not read.
        """
        if unknown := sorted(variables.keys() & set(_NOT_VARIABLES)):
            raise RequestError(
                f"{unknown[0]} is not supported: token ids are plain lists, neither cut nor padded. Leave it out.",
                field=unknown[0],
            )
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message goes on with the last message and add_generation_prompt begins a new one. Set "
                "one of them.",
                field="continue_final_message",
            )
        template = with_template(self._asked, chat_template).require_template()
        listed = as_list(conversation)
        conversations = as_conversations(conversation if listed is None else listed)
        prompts = [
            self._render(
                messages,
                template,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=variables,
            )
            for messages in conversations
        ]
        made: list[Any] = [self._tokenizer.encode_prompt(prompt) if tokenize else prompt.text for prompt in prompts]
        is_one = not listed or isinstance(listed[0], Mapping)
        result = made[0] if is_one else made
        return Encoding.of(result) if tokenize and return_dict else result

    def _render(
        self,
        messages: list[Any],
        template: ChatTemplate,
        *,
        tools: object,
        documents: object,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> PromptText:
        normalized = normalize_messages(messages, self._take_media)
        seam = mark_end(normalized) if continue_final_message else None
        prompt = template.render(
            normalized,
            tools=normalize_tools(tools).for_template,
            tools_as_json=ReplyMarkers.find(self._tokenizer) is None,
            documents=as_documents(documents),
            add_generation_prompt=add_generation_prompt,
            variables=template_variables(
                chat_template_kwargs=variables, default_chat_template_kwargs=self._asked.template_variables
            ),
        )
        return prompt if seam is None else cut_at(seam, prompt)

    def _take_media(self, part: Mapping[Any, Any], where: str) -> MediaKind:
        """The kind of a part, which its type names. What it holds is not looked at."""
        kinds = self._asked.media.kinds
        kind: MediaKind | None = next((kind for kind in get_args(MediaKind) if kind in part["type"]), None)
        if kind is None or kind not in kinds:
            read = ", ".join(("text", *kinds))
            raise RequestError(f"{where} is of type {part['type']!r}, but this model reads {read}.", field="messages")
        return kind

    @functools.cached_property
    def _vocabulary(self) -> dict[str, int]:
        spelled = ((self._tokenizer.id_to_token(token_id), token_id) for token_id in range(len(self)))
        return {token: token_id for token, token_id in spelled if token is not None}

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)
