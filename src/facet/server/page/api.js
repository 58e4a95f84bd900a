// The client of the server's API: the API key, error messages, and streamed answers. Knows no element of the page.

import { encodeBody } from "./request_body.js";
import { read, write } from "./storage.js";

const KEY_NAME = "facet.key";
let key = read("sessionStorage", KEY_NAME);

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function keepKey(given) {
  key = given;
  write("sessionStorage", KEY_NAME, given);
}

// Paths are relative to the page, so that it also works behind a proxy's prefix.
async function send(path, options = {}) {
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is it still running?", 0);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  let detail = {};
  try {
    detail = (await response.json()).error ?? {};
  } catch {
    // not one of our own errors: a proxy's, perhaps
  }
  return new ServerError(detail.message ?? `The server answered ${response.status}.`, response.status);
}

async function post(path, body, signal) {
  let encoded;
  try {
    encoded = await encodeBody(body);
  } catch {
    throw new ServerError("A file cannot be read any more. Was it moved or changed?", 0);
  }
  const headers = { "content-type": "application/json" };
  return await send(path, { method: "POST", headers, body: encoded, signal });
}

export async function liveView() {
  return (await send("engine/live")).json();
}

// The soft tokens of a picture, sound or video, given as a part of a message.
export async function countTokens(part) {
  const answer = await (await post("tokenize", { messages: [{ role: "user", content: [part] }] })).json();
  return answer.media[0].num_tokens;
}

// Calls onChunk with each event of a streamed chat completion.
export async function streamChat(body, onChunk, signal) {
  const streamed = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await post("v1/chat/completions", streamed, signal);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, chunk.error.code);
    onChunk(chunk);
  }
  throw new ServerError("The connection was closed before the answer was complete.", 0);
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}
