// The cards of an answer's tool calls, into which the user types results.

import { clone } from "./elements.js";

export class CallCards {
  // onResults gets the text of every result, in the order of the calls.
  constructor(form, { onResults }) {
    this.form = form;
    this.cards = [];
    this.hasResults = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.hasResults) onResults(this.fields.map((field) => field.value));
    });
  }

  get fields() {
    return this.cards.map((card) => card.querySelector("textarea"));
  }

  show(calls, { isOpen }) {
    this.form.hidden = calls.length === 0;
    for (const [at, call] of calls.entries()) {
      this.cards[at] ??= this.makeCard();
      const card = this.cards[at];
      card.querySelector(".name").textContent = call.function.name;
      card.querySelector("label span").textContent = `Result of ${call.function.name}`;
      showArguments(card.querySelector(".arguments"), call.function.arguments);
      card.querySelector("label").hidden = isOpen;
    }
    while (this.cards.length > calls.length) this.cards.pop().remove();
    const send = this.form.lastElementChild;
    send.hidden = isOpen || this.hasResults;
    send.querySelector("button").textContent = calls.length > 1 ? "Send results" : "Send result";
  }

  makeCard() {
    const card = clone("call-template");
    card.querySelector("textarea").addEventListener("keydown", (event) => this.onKey(event));
    this.form.insertBefore(card, this.form.lastElementChild);
    return card;
  }

  onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    // Moves on to the next empty result; sends when there is none.
    const empty = this.fields.find((field) => !field.value.trim());
    if (empty && empty !== event.target) empty.focus();
    else this.form.requestSubmit();
  }

  // The results are sent and cannot be changed any more.
  freeze() {
    this.hasResults = true;
    for (const field of this.fields) {
      field.readOnly = true;
      field.rows = Math.min(8, field.value.split("\n").length);
    }
  }
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
