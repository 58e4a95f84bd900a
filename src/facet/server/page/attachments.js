// Pictures, sound and video that go with a message: what is shown of them, sent, and kept.

import { countTokens } from "./api.js";
import { clone } from "./elements.js";
import { makeThumbnail } from "./thumbnails.js";

const count = new Intl.NumberFormat("en");
const EXTENSIONS = { mkv: "video", mov: "video", flac: "audio", m4a: "audio", opus: "audio" };

// "image", "audio", "video", or another word for what no model reads.
export function kindOf(file) {
  return file.type.split("/")[0] || EXTENSIONS[file.name.split(".").at(-1).toLowerCase()] || "unknown";
}

export class Attachment {
  // Without a file if it comes from a kept conversation: browsers have no room for files, only for thumbnails.
  constructor({ kind, name, file = null, thumbnail = null, numTokens = null }) {
    Object.assign(this, { kind, name, file, thumbnail, numTokens });
    this.views = [];
    this.isDiscarded = false; // the user changed their mind
  }

  // A part of a message. The file in it becomes a data URL when it is sent.
  wire() {
    const type = `${this.kind}_url`;
    return { type, [type]: { url: this.file } };
  }

  stored() {
    const { kind, name, thumbnail, numTokens } = this;
    return { kind, name, thumbnail, numTokens };
  }

  // Shows the file, then asks the server what it costs. Fails with the server's words about a file it refuses.
  async look() {
    this.thumbnail = await makeThumbnail(this.kind, this.file);
    this.show();
    this.numTokens = await countTokens(this.wire());
    this.show();
  }

  // An element that follows what is known; onRemove gives it a button.
  view(onRemove) {
    const view = clone("attachment-template");
    const button = view.querySelector("button");
    button.hidden = !onRemove;
    button.setAttribute("aria-label", `Remove ${this.name}`);
    button.addEventListener("click", () => onRemove());
    view.querySelector(".name").textContent = this.name;
    view.title = this.name;
    view.dataset.kind = this.kind;
    this.views.push(view);
    this.show();
    return view;
  }

  get cost() {
    if (!this.file) return "not sent again";
    return this.numTokens === null ? "…" : `${count.format(this.numTokens)} tokens`;
  }

  show() {
    for (const view of this.views) {
      const picture = view.querySelector("img");
      picture.hidden = !this.thumbnail;
      if (this.thumbnail && picture.src !== this.thumbnail) picture.src = this.thumbnail;
      view.querySelector(".cost").textContent = this.cost;
      view.classList.toggle("is-gone", !this.file);
    }
  }
}
