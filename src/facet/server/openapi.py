"""Makes the OpenAPI document from the wire types, and a page that shows it."""

from typing import Any

import msgspec

from facet.server.anthropic.wire import CountTokensRequest, Message, MessagesRequest, TokenCount
from facet.server.dialect import ErrorBody
from facet.server.ollama.wire import (
    ChatLine,
    GenerateLine,
    GenerateRequest,
    ModelDescription,
    OllamaChatRequest,
    ShowRequest,
)
from facet.server.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from facet.server.protocol.chat import ChatRequest, ChatResponse
from facet.server.protocol.completions import CompletionRequest, CompletionResponse
from facet.server.protocol.tokenizing import (
    DetokenizeRequest,
    DetokenizeResponse,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
)
from facet.server.responses.wire import InputTokens, ResponseObject, ResponsesRequest
from facet.server.transcriptions.wire import Transcription, TranscriptionRequest
from facet.version import __version__

_POSTS: tuple[tuple[str, str, type[Any], type[Any]], ...] = (
    ("/v1/chat/completions", "Answer a conversation", ChatRequest, ChatResponse),
    ("/v1/completions", "Continue a prompt", CompletionRequest, CompletionResponse),
    ("/v1/responses", "Answer a conversation, of which parts may be stored here", ResponsesRequest, ResponseObject),
    ("/v1/responses/input_tokens", "Count the tokens of such a conversation", ResponsesRequest, InputTokens),
    ("/v1/messages", "Answer a conversation, as Anthropic's API does", MessagesRequest, Message),
    ("/v1/messages/count_tokens", "Count the tokens of a conversation", CountTokensRequest, TokenCount),
    ("/api/chat", "Answer a conversation, as Ollama does", OllamaChatRequest, ChatLine),
    ("/api/generate", "Answer a prompt, as Ollama does", GenerateRequest, GenerateLine),
    ("/api/show", "Describe a model, as Ollama does", ShowRequest, ModelDescription),
    ("/tokenize", "Text or messages to token ids", TokenizeRequest, TokenizeResponse),
    ("/detokenize", "Token ids to text", DetokenizeRequest, DetokenizeResponse),
)
_FORMS: tuple[tuple[str, str, type[Any], type[Any]], ...] = (
    ("/v1/audio/transcriptions", "Write down what is said in a sound", TranscriptionRequest, Transcription),
    ("/v1/audio/translations", "Translate what is said in a sound", TranscriptionRequest, Transcription),
)
_GETS = (
    ("/api/tags", "The models of this server, as Ollama lists them"),
    ("/api/ps", "The models that run, as Ollama lists them"),
    ("/api/version", "The server's version"),
    ("/health", "200 while the engine is running, 503 once it is dead"),
    ("/ping", "The same as /health"),
    ("/version", "The server's version"),
    ("/load", "The number of answers running or waiting"),
    ("/metrics", "Prometheus metrics"),
    ("/server_info", "The server's settings, but for keys and files"),
    ("/tokenizer_info", "The special tokens and the chat template"),
    ("/engine/live", "The engine at this moment, with a picture of its cache"),
    ("/", "A page to chat with the model, with a view of the engine"),
)
_PLAIN_POSTS = (
    ("/reset_prefix_cache", "Forget cached prefixes"),
    ("/invocations", "A request of /v1/chat/completions or /v1/completions, as SageMaker sends it"),
)
_OF_SLEEP = (
    (
        "post",
        (
            ("/sleep", "Give memory back: ?level=1 or 2, &mode=wait or abort"),
            ("/wake_up", "Take the memory again"),
        ),
    ),
    ("get", (("/is_sleeping", "Whether the model sleeps"),)),
)
_OF_ADAPTERS: tuple[tuple[str, str, type[Any]], ...] = (
    ("/v1/load_lora_adapter", "Load an adapter, which requests then name as their model", LoadAdapterRequest),
    ("/v1/unload_lora_adapter", "Forget an adapter", UnloadAdapterRequest),
)

DOCS_PAGE = """<!doctype html><meta charset="utf-8"><title>Facet</title>
<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{background:#f4f4f4;padding:1em;
overflow:auto}summary{cursor:pointer;font-family:monospace}</style>
<h1>Facet</h1><p>The API as a document: <a href="openapi.json">openapi.json</a></p><div id="paths"></div>
<script>
fetch("openapi.json").then(r => r.json()).then(api => {
  const resolve = s => s && s.$ref ? api.components.schemas[s.$ref.split("/").pop()] : s;
  for (const [path, methods] of Object.entries(api.paths)) for (const [method, about] of Object.entries(methods)) {
    const item = document.createElement("details"), title = document.createElement("summary");
    title.textContent = method.toUpperCase() + " " + path + " : " + about.summary;
    item.append(title);
    const body = about.requestBody && resolve(Object.values(about.requestBody.content)[0].schema);
    if (body) { const text = document.createElement("pre"); text.textContent = JSON.stringify(body.properties, null, 1);
      item.append(text); }
    document.getElementById("paths").append(item);
  }
});
</script>"""


def openapi_document(*, sleeps: bool = False, loads_adapters: bool = False) -> dict[str, Any]:
    """`sleeps`: with the paths of sleep mode. `loads_adapters`: with those of adapters."""
    of_adapters = _OF_ADAPTERS if loads_adapters else ()
    types = [wire for _, _, request, response in (*_POSTS, *_FORMS) for wire in (request, response)]
    types = list(dict.fromkeys((*types, *(request for _, _, request in of_adapters), ModelList, ErrorBody)))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, schemas, strict=True))
    failure = {"description": "What was wrong", "content": {"application/json": {"schema": by_type[ErrorBody]}}}
    paths: dict[str, Any] = {}
    for body_type, posts in (("application/json", _POSTS), ("multipart/form-data", _FORMS)):
        for path, summary, request, response in posts:
            content = {"application/json": {"schema": by_type[response]}}
            paths[path] = {
                "post": {
                    "summary": summary,
                    "requestBody": {"required": True, "content": {body_type: {"schema": by_type[request]}}},
                    "responses": {"200": {"description": "The response", "content": content}, "default": failure},
                }
            }
    for form in {form for _, _, form, _ in _FORMS}:
        schema = components[form.__name__]
        schema["properties"] = {"file": {"type": "string", "format": "binary"}, **schema["properties"]}
        schema["required"] = ["file"]
    paths["/v1/models"] = {
        "get": {
            "summary": "The models of this server",
            "responses": {
                "200": {"description": "Them", "content": {"application/json": {"schema": by_type[ModelList]}}}
            },
        }
    }
    for method, plain in (("get", _GETS), ("post", _PLAIN_POSTS), *(_OF_SLEEP if sleeps else ())):
        for path, summary in plain:
            paths[path] = {method: {"summary": summary, "responses": {"200": {"description": "As it says"}}}}
    for path, summary, request in of_adapters:
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": {"application/json": {"schema": by_type[request]}}},
                "responses": {"200": {"description": "It is done"}, "default": failure},
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Facet", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }
