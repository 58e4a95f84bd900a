// A message of the user, as it is shown, sent and kept.

import { copyButton } from "./clipboard.js";
import { clone } from "./elements.js";

export class UserMessage {
  constructor(text, { onEdit }) {
    this.text = text;
    this.element = clone("user-template");
    this.element.querySelector(".text").textContent = text;
    copyButton(this.element.querySelector(".copy"), () => this.text);
    this.element.querySelector(".edit").addEventListener("click", () => onEdit(this));
  }

  wire() {
    return { role: "user", content: this.text };
  }

  stored() {
    return { role: "user", content: this.text };
  }
}
