// An answer of the model: grows while it is streamed, then can be copied, asked for again, and kept.

import { CallCards } from "./calls.js";
import { copyButton } from "./clipboard.js";
import { clone } from "./elements.js";
import { render } from "./markdown.js";

export class Answer {
  constructor({ onRetry, onResults, keepAtBottom }) {
    this.keepAtBottom = keepAtBottom;
    this.adapter = null; // its name; none means the model itself
    this.content = "";
    this.thought = "";
    this.calls = [];
    this.isOpen = true;
    this.start = performance.now();
    this.first = null;
    this.usage = null;
    this.finishReason = null;
    this.frame = null;
    this.element = clone("answer-template");
    this.element.classList.add("is-open");
    this.find(".retry").addEventListener("click", onRetry);
    copyButton(this.find(".copy"), () => this.content);
    this.cards = new CallCards(this.find(".calls"), {
      onResults: (texts) => onResults(this, this.calls.map((call, at) => resultOf(call, texts[at]))),
    });
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  // Stopped or failed before it began: neither sent nor kept.
  get isBlank() {
    return !this.content && !this.thought && !this.calls.length;
  }

  get isWaiting() {
    return !this.isOpen && this.calls.length > 0 && !this.cards.hasResults;
  }

  wire() {
    const message = { role: "assistant", content: this.content };
    if (this.thought) message.reasoning_content = this.thought;
    if (this.calls.length) message.tool_calls = this.calls;
    return message;
  }

  // A call that is still being written is not kept: it could be cut off anywhere.
  stored() {
    const facts = this.isOpen ? this.firstFacts("interrupted").join(" · ") : this.find(".facts span").textContent;
    return { ...this.wire(), facts, tool_calls: this.isOpen ? [] : this.calls };
  }

  restore({ content, reasoning_content: thought = "", tool_calls: calls = [], facts = "" }) {
    [this.content, this.thought, this.calls] = [content, thought, calls];
    this.end(facts);
    this.canRetry(false);
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const { delta, finish_reason: reason } of chunk.choices) {
      const thought = delta.reasoning_content ?? delta.reasoning;
      if (thought || delta.content || delta.tool_calls) this.first ??= performance.now();
      if (thought) this.thought += thought;
      if (delta.content) this.content += delta.content;
      for (const call of delta.tool_calls ?? []) this.takeCall(call);
      if (reason) this.finishReason = reason;
    }
    // Once per frame: a fast model writes more often than a screen is drawn.
    this.frame ??= requestAnimationFrame(() => this.show());
  }

  takeCall({ index, id, function: part }) {
    this.calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } };
    this.calls[index].function.name += part.name ?? "";
    this.calls[index].function.arguments += part.arguments ?? "";
  }

  show() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.keepAtBottom(() => {
      if (this.thought) {
        const isThinking = this.isOpen && !this.content && !this.calls.length;
        this.find(".thoughts").hidden = false;
        this.find(".thoughts summary").textContent = isThinking ? "Thinking…" : "Thoughts";
        this.find(".thoughts .text").textContent = this.thought;
      }
      update(this.find(".content"), render(this.content));
      this.cards.show(this.calls, this);
    });
  }

  // Results that were kept, in the order of the calls.
  showResults(texts) {
    for (const [at, field] of this.cards.fields.entries()) field.value = texts[at] ?? "";
    this.keepResults();
  }

  keepResults() {
    this.cards.freeze();
    this.show();
  }

  // The stream has ended; where not by itself, `why` says so in a word.
  close(why = "") {
    // A call that was cut off must be neither carried out nor sent back.
    if (this.finishReason !== "tool_calls") this.calls = [];
    this.end(this.facts(why));
    this.canRetry(true);
    // Not while the user is typing somewhere else.
    if (this.calls.length && !document.activeElement?.value) this.cards.fields[0].focus();
  }

  end(facts) {
    this.isOpen = false;
    this.element.classList.remove("is-open");
    this.show();
    this.find(".facts span").textContent = facts;
    this.find(".facts").hidden = false;
    this.find(".copy").hidden = !this.content;
  }

  canRetry(can) {
    this.find(".retry").hidden = !can;
  }

  firstFacts(why) {
    return [this.adapter && `adapter ${this.adapter}`, why].filter(Boolean);
  }

  facts(why) {
    const parts = this.firstFacts(why);
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

function resultOf(call, content) {
  return { id: call.id, name: call.function.name, content };
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
