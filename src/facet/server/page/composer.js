// The field in which the user writes: a new message, or another version of an earlier one.

import { byId } from "./elements.js";
import { Tray } from "./tray.js";

export class Composer {
  constructor({ onSend }) {
    this.field = byId("message");
    this.tray = new Tray({ onNotice: (text) => this.notice(text) });
    this.editing = null; // the message that the next one replaces, with all that followed it
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      onSend();
    });
    this.field.addEventListener("input", () => {
      this.fitHeight();
      this.notice(null);
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.editing) this.cancelEdit();
      // While an input method is composing, Enter belongs to it.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      onSend();
    });
    byId("edit-cancel").addEventListener("click", () => this.cancelEdit());
  }

  get text() {
    return this.field.value.trim();
  }

  get attachments() {
    return this.tray.attachments;
  }

  get isEmpty() {
    return !this.text && !this.attachments.length;
  }

  fill(text) {
    this.field.value = text;
    this.fitHeight();
  }

  // After a message was taken from it.
  clear() {
    this.fill("");
    this.tray.fill();
    this.setEditing(null);
  }

  edit(view) {
    this.fill(view.text);
    this.tray.fill(view.attachments);
    this.setEditing(view);
    this.field.focus();
  }

  cancelEdit() {
    this.clear();
    this.field.focus();
  }

  setEditing(view) {
    this.editing?.element.classList.remove("is-edited");
    this.editing = view;
    view?.element.classList.add("is-edited");
    byId("editing").hidden = !view;
  }

  notice(text) {
    byId("notice").hidden = !text;
    byId("notice").textContent = text ?? "";
  }

  focus() {
    this.field.focus({ preventScroll: true });
  }

  fitHeight() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
  }
}
