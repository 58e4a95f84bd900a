// The conversation: its messages, and the element that shows each. Sends and keeps nothing itself; main.js does.

import { Answer } from "./answer.js";
import { byId, clone } from "./elements.js";
import { UserMessage } from "./user_message.js";

export class Conversation {
  // What the user does with a message is main.js's to carry out.
  constructor({ onRetry, onResults, onEdit }) {
    this.log = byId("conversation");
    this.views = []; // one for each message; those of results, which are shown in their call's card, have no element
    this.onRetry = onRetry;
    this.onResults = onResults;
    this.userHooks = { onEdit };
  }

  get isEmpty() {
    return this.views.length === 0;
  }

  // The last answer, if its calls are waiting for results.
  get waiting() {
    const view = this.views.at(-1);
    return view instanceof Answer && view.isWaiting ? view : null;
  }

  // The messages to send.
  wire() {
    return this.views.filter((view) => !view.isBlank).map((view) => view.wire());
  }

  // The messages to keep.
  stored() {
    return this.views.filter((view) => !view.isBlank).map((view) => view.stored());
  }

  clear() {
    this.cut(0);
    byId("welcome").hidden = false;
  }

  // Shows a conversation that was kept, instead of this one.
  show(messages) {
    this.clear();
    for (const [at, message] of messages.entries()) {
      if (message.role === "user") this.add(UserMessage.restore(message, this.userHooks));
      else if (message.role === "assistant") this.addAnswer(message);
      else if (messages[at - 1]?.role !== "tool") this.addKeptResults(messages.slice(at));
    }
    const last = this.views.at(-1);
    if (last instanceof Answer) last.canRetry(true);
    else if (last) this.addError("The answer was interrupted.");
  }

  addUser(text, attachments) {
    this.add(new UserMessage(text, attachments, this.userHooks));
  }

  addResults(results) {
    for (const { id, name, content } of results) {
      const message = { role: "tool", tool_call_id: id, name, content };
      this.views.push({ wire: () => message, stored: () => message });
    }
  }

  addKeptResults(messages) {
    const answer = this.views.at(-1);
    if (!(answer instanceof Answer)) return;
    const end = messages.findIndex((message) => message.role !== "tool");
    const results = messages.slice(0, end < 0 ? messages.length : end);
    answer.showResults(results.map((message) => message.content));
    this.addResults(results.map(({ tool_call_id: id, name, content }) => ({ id, name, content })));
  }

  // `adapter` is the name of the one that answers, or null.
  startAnswer(adapter) {
    for (const view of this.views) if (view instanceof Answer) view.canRetry(false);
    const answer = this.addAnswer();
    answer.adapter = adapter;
    return answer;
  }

  // A new answer, or one that was kept.
  addAnswer(kept) {
    const hooks = {
      onRetry: () => this.onRetry(),
      onResults: (view, results) => this.onResults(view, results),
      keepAtBottom: (change) => this.keepAtBottom(change),
    };
    const answer = new Answer(hooks);
    if (kept) answer.restore(kept);
    this.add(answer);
    return answer;
  }

  // Removes the last answer, so that it can be requested again.
  dropLastAnswer() {
    this.dropError();
    if (this.views.at(-1) instanceof Answer) this.views.pop().element.remove();
  }

  // Removes a message and everything after it.
  cutFrom(view) {
    this.cut(this.views.indexOf(view));
  }

  cut(start) {
    for (const view of this.views.splice(start)) view.element?.remove();
    this.dropError();
  }

  addError(text) {
    this.dropError();
    this.error = clone("error-template");
    this.error.querySelector(".text").textContent = text;
    this.error.querySelector(".retry").addEventListener("click", () => this.onRetry());
    this.log.append(this.error);
    this.scrollDown();
  }

  dropError() {
    this.error?.remove();
    this.error = null;
  }

  add(view) {
    this.dropError();
    byId("welcome").hidden = true;
    this.views.push(view);
    this.log.append(view.element);
    this.scrollDown();
  }

  // Carries out a change of what is shown. Whoever reads further up stays there.
  keepAtBottom(change) {
    const isAtBottom = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
    change();
    if (isAtBottom) this.scrollDown();
  }

  scrollDown() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}
