// A message of the user, as it is shown, sent and kept.

import { Attachment } from "./attachments.js";
import { copyButton } from "./clipboard.js";
import { clone } from "./elements.js";

export class UserMessage {
  constructor(text, attachments, { onEdit }) {
    this.text = text;
    this.attachments = attachments;
    this.element = clone("user-template");
    this.element.querySelector(".text").textContent = text;
    this.element.querySelector(".text").hidden = !text;
    this.element.querySelector(".attachments").append(...attachments.map((attachment) => attachment.view()));
    copyButton(this.element.querySelector(".copy"), () => this.text);
    this.element.querySelector(".edit").addEventListener("click", () => onEdit(this));
  }

  static restore({ content, attachments = [] }, hooks) {
    return new UserMessage(content, attachments.map((kept) => new Attachment(kept)), hooks);
  }

  wire() {
    const parts = this.attachments.filter((attachment) => attachment.file).map((attachment) => attachment.wire());
    if (!parts.length) return { role: "user", content: this.text };
    const text = this.text ? [{ type: "text", text: this.text }] : [];
    return { role: "user", content: [...parts, ...text] };
  }

  stored() {
    const attachments = this.attachments.map((attachment) => attachment.stored());
    return { role: "user", content: this.text, ...(attachments.length ? { attachments } : {}) };
  }
}
