// The conversation: its messages as the API has them, and how they are shown. Sends nothing itself; main.js does.

import { render } from "./markdown.js";

const byId = (id) => document.getElementById(id);
const clone = (id) => byId(id).content.firstElementChild.cloneNode(true);

export class Conversation {
  constructor({ onRetry, onResults }) {
    this.log = byId("conversation");
    this.messages = [];
    this.views = []; // an element for each message, where it has one
    this.onRetry = onRetry;
    this.onResults = onResults;
  }

  get isEmpty() {
    return this.messages.length === 0;
  }

  // The last answer, if its calls are waiting for results.
  get waiting() {
    const view = this.views.at(-1);
    return view instanceof Answer && view.message.tool_calls.length && !view.isOpen ? view : null;
  }

  // The messages to send: without empty fields, and without answers that were stopped before they began.
  wire() {
    const isSaid = ([name, value]) => name === "role" || name === "content" || value.length > 0;
    return this.messages
      .filter((message) => message.role !== "assistant" || !isBlank(message))
      .map((message) => Object.fromEntries(Object.entries(message).filter(isSaid)));
  }

  clear() {
    for (const view of this.views) view?.element.remove();
    this.dropError();
    [this.messages, this.views] = [[], []];
    byId("welcome").hidden = false;
  }

  addUser(text) {
    const element = clone("user-template");
    element.querySelector(".text").textContent = text;
    this.add({ role: "user", content: text }, { element });
  }

  addResults(results) {
    for (const { id, name, content } of results) {
      this.messages.push({ role: "tool", tool_call_id: id, name, content });
      this.views.push(null); // shown in its call's card
    }
  }

  startAnswer() {
    for (const view of this.views) if (view instanceof Answer) view.canRetry(false);
    const answer = new Answer(this);
    this.add(answer.message, answer);
    return answer;
  }

  // Removes the last answer, so that it can be requested again.
  dropLastAnswer() {
    this.dropError();
    if (this.messages.at(-1)?.role === "assistant") {
      this.messages.pop();
      this.views.pop().element.remove();
    }
  }

  addError(text) {
    this.dropError();
    this.error = clone("error-template");
    this.error.querySelector(".text").textContent = text;
    this.error.querySelector(".retry").addEventListener("click", () => this.onRetry());
    this.log.append(this.error);
    this.scrollDown(true);
  }

  dropError() {
    this.error?.remove();
    this.error = null;
  }

  add(message, view) {
    this.dropError();
    byId("welcome").hidden = true;
    this.messages.push(message);
    this.views.push(view);
    this.log.append(view.element);
    this.scrollDown(true);
  }

  get isAtBottom() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
  }

  scrollDown(always) {
    if (always || this.isAtBottom) this.log.scrollTop = this.log.scrollHeight;
  }
}

function isBlank(answer) {
  return !answer.content && !answer.reasoning_content && !answer.tool_calls.length;
}

class Answer {
  constructor(conversation) {
    this.conversation = conversation;
    this.message = { role: "assistant", content: "", reasoning_content: "", tool_calls: [] };
    this.element = clone("answer-template");
    this.element.classList.add("is-open");
    this.isOpen = true;
    this.start = performance.now();
    this.first = null;
    this.usage = null;
    this.finishReason = null;
    this.cards = [];
    this.frame = null;
    this.find(".retry").addEventListener("click", () => conversation.onRetry());
    this.find(".calls").addEventListener("submit", (event) => {
      event.preventDefault();
      this.sendResults();
    });
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const { delta, finish_reason: reason } of chunk.choices) {
      const { message } = this;
      const thought = delta.reasoning_content ?? delta.reasoning;
      if (thought || delta.content || delta.tool_calls) this.first ??= performance.now();
      if (thought) message.reasoning_content += thought;
      if (delta.content) {
        message.content += delta.content;
      }
      for (const call of delta.tool_calls ?? []) this.takeCall(call);
      if (reason) this.finishReason = reason;
    }
    // Once per frame: a fast model writes more often than a screen is drawn.
    this.frame ??= requestAnimationFrame(() => this.show());
  }

  takeCall({ index, id, function: part }) {
    const calls = this.message.tool_calls;
    calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } };
    calls[index].function.name += part.name ?? "";
    calls[index].function.arguments += part.arguments ?? "";
  }

  show() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    const { log } = this.conversation;
    const { isAtBottom } = this.conversation;
    const { content, reasoning_content: thought, tool_calls: calls } = this.message;
    if (thought) {
      const isThinking = this.isOpen && !content && !calls.length;
      this.find(".thoughts").hidden = false;
      this.find(".thoughts summary").textContent = isThinking ? "Thinking…" : "Thoughts";
      this.find(".thoughts .text").textContent = thought;
    }
    update(this.find(".content"), render(content));
    this.showCalls(calls);
    if (isAtBottom) log.scrollTop = log.scrollHeight;
  }

  showCalls(calls) {
    const form = this.find(".calls");
    form.hidden = calls.length === 0;
    calls.forEach((call, at) => {
      if (!this.cards[at]) {
        this.cards[at] = clone("call-template");
        this.cards[at].querySelector("textarea").addEventListener("keydown", (event) => this.onKey(event));
        form.insertBefore(this.cards[at], form.lastElementChild);
      }
      const card = this.cards[at];
      card.querySelector(".name").textContent = call.function.name;
      card.querySelector("label span").textContent = `Result of ${call.function.name}`;
      showArguments(card.querySelector(".arguments"), call.function.arguments);
      card.querySelector("label").hidden = this.isOpen;
    });
    form.lastElementChild.hidden = this.isOpen || this.hasResults;
    form.querySelector("button").textContent = calls.length > 1 ? "Send results" : "Send result";
  }

  onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    // Moves on to the next empty result; sends when there is none.
    const empty = this.cards.map((card) => card.querySelector("textarea")).find((field) => !field.value.trim());
    if (empty && empty !== event.target) empty.focus();
    else this.find(".calls").requestSubmit();
  }

  sendResults() {
    if (this.hasResults) return;
    const fields = this.cards.map((card) => card.querySelector("textarea"));
    const results = this.message.tool_calls.map((call, at) => ({
      id: call.id,
      name: call.function.name,
      content: fields[at].value,
    }));
    this.conversation.onResults(this, results);
  }

  keepResults() {
    this.hasResults = true;
    for (const card of this.cards) {
      const field = card.querySelector("textarea");
      field.readOnly = true;
      field.rows = Math.min(8, field.value.split("\n").length);
    }
    this.show();
  }

  // The stream has ended, by itself or because the user stopped it.
  close({ isStopped = false } = {}) {
    this.isOpen = false;
    this.element.classList.remove("is-open");
    // A call that was cut off must be neither carried out nor sent back.
    if (this.finishReason !== "tool_calls") this.dropCalls();
    this.show();
    this.find(".facts span").textContent = this.facts(isStopped);
    this.canRetry(true);
    // Not while the user is typing somewhere else.
    if (this.cards.length && !document.activeElement?.value) this.cards[0].querySelector("textarea").focus();
  }

  dropCalls() {
    for (const card of this.cards) card.remove();
    [this.cards, this.message.tool_calls] = [[], []];
  }

  get isBlank() {
    return isBlank(this.message);
  }

  canRetry(can) {
    this.find(".facts").hidden = false;
    this.find(".facts .retry").hidden = !can;
  }

  facts(isStopped) {
    const parts = [];
    if (isStopped) parts.push("stopped");
    if (this.finishReason === "length") parts.push("cut off at the maximum number of tokens");
    if (this.first !== null) parts.push(`first token after ${((this.first - this.start) / 1000).toFixed(2)} s`);
    if (this.usage) {
      const { completion_tokens: num, prompt_tokens: numPrompt, prompt_tokens_details: details } = this.usage;
      const seconds = (performance.now() - this.first) / 1000;
      parts.push(`${num} tokens${num > 1 && seconds > 0 ? `, ${Math.round((num - 1) / seconds)}/s` : ""}`);
      if (details?.cached_tokens) parts.push(`${details.cached_tokens} of ${numPrompt} prompt tokens from the cache`);
    }
    return parts.join(" · ");
  }
}

// Replaces only what changed, so that a selection in the rest of the text survives.
function update(parent, blocks) {
  blocks.forEach((block, at) => {
    const shown = parent.children[at];
    if (!shown) parent.append(block);
    else if (!shown.isEqualNode(block)) shown.replaceWith(block);
  });
  while (parent.children.length > blocks.length) parent.lastElementChild.remove();
}

function showArguments(list, text) {
  let values = null;
  try {
    values = JSON.parse(text);
  } catch {
    // still on its way
  }
  const rows = [];
  const add = (name, ...parts) => {
    const row = document.createElement(name);
    row.append(...parts);
    rows.push(row);
    return row;
  };
  if (values !== null && typeof values === "object" && !Array.isArray(values)) {
    for (const [name, value] of Object.entries(values)) {
      add("dt", name);
      add("dd", JSON.stringify(value));
    }
  } else {
    add("dd", text).classList.add("whole");
  }
  list.replaceChildren(...rows);
}
