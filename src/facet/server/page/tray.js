// The attachments of the message that is being written: by button, by dragging, by pasting.

import { Attachment, kindOf } from "./attachments.js";
import { byId } from "./elements.js";

const KINDS = { image: "pictures", audio: "sound", video: "video" };
const ONE = { image: "a picture", audio: "sound", video: "a video" };
// Formats by name, so that a phone converts its photos to one that servers read.
const ACCEPTED = { image: "image/png,image/jpeg,image/webp,image/gif,image/bmp", audio: "audio/*", video: "video/*" };

export class Tray {
  // onNotice gets what the user should know about a file that is not taken.
  constructor({ onNotice }) {
    this.kinds = []; // what the model reads
    this.attachments = [];
    this.looking = Promise.resolve(); // one file after the other: each may be large
    this.onNotice = onNotice;
    byId("attach").addEventListener("click", () => byId("files").click());
    byId("files").addEventListener("change", () => {
      this.add([...byId("files").files]);
      byId("files").value = ""; // so that the same file can be chosen again
    });
    byId("message").addEventListener("paste", (event) => this.onPaste(event));
    for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
      document.addEventListener(name, (event) => this.onDrag(event));
    }
  }

  setKinds(kinds) {
    if (kinds.join() === this.kinds.join()) return;
    this.kinds = kinds;
    const label = `Add ${kinds.map((kind) => KINDS[kind]).join(", ")}`;
    byId("attach").hidden = !kinds.length;
    byId("attach").setAttribute("aria-label", label);
    byId("attach").title = label;
    byId("files").accept = kinds.map((kind) => ACCEPTED[kind]).join();
  }

  onPaste(event) {
    const { files, types } = event.clipboardData;
    // Office programs send a picture of the text along with it.
    if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return;
    event.preventDefault();
    this.add([...files]);
  }

  onDrag(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // else the browser leaves the page and opens the file
    const hasLeft = event.type === "dragleave" && event.relatedTarget === null;
    document.body.classList.toggle("takes-files", event.type !== "drop" && !hasLeft);
    if (event.type === "drop") this.add([...event.dataTransfer.files]);
  }

  add(files) {
    for (const file of files) {
      const kind = kindOf(file);
      if (this.kinds.includes(kind)) this.addAttachment(new Attachment({ kind, name: file.name, file }));
      else this.onNotice(this.refusal(file, kind));
    }
  }

  refusal(file, kind) {
    const known = ["text", ...this.kinds.map((each) => KINDS[each])].join(", ");
    return `${file.name} is ${ONE[kind] ?? "neither a picture, sound nor a video"}. This model reads ${known}.`;
  }

  addAttachment(attachment) {
    this.put(attachment);
    this.looking = this.looking.then(async () => {
      try {
        if (!attachment.isDiscarded) await attachment.look();
      } catch (error) {
        if (error.status !== 400 && error.status !== 413) return; // then nothing is wrong with the file
        this.remove(attachment);
        this.onNotice(error.message.replace(/^messages\[0\]\.content\[0\]\S*/, attachment.name));
      }
    });
  }

  put(attachment) {
    attachment.trayView = attachment.view(() => {
      attachment.isDiscarded = true;
      this.remove(attachment);
    });
    this.attachments.push(attachment);
    byId("tray").append(attachment.trayView);
    byId("tray").hidden = false;
  }

  remove(attachment) {
    if (!this.attachments.includes(attachment)) return;
    this.attachments = this.attachments.filter((other) => other !== attachment);
    attachment.trayView.remove();
    byId("tray").hidden = !this.attachments.length;
  }

  // Another message's attachments, or none. Those whose file is gone cannot be sent.
  fill(attachments = []) {
    for (const attachment of this.attachments) this.remove(attachment);
    for (const attachment of attachments) if (attachment.file) this.put(attachment);
  }
}
