// The list of conversations that the browser keeps: opens, renames and deletes them.

import { listChats, nameOf, removeChat, renameChat } from "./chats.js";
import { byId, clone } from "./elements.js";

const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export class ChatList {
  // Each hook gets the id of a chat; onRename also its new name.
  constructor({ onOpen, onRename, onDelete }) {
    this.onOpen = onOpen;
    this.onRename = onRename;
    this.onDelete = onDelete;
    this.dialog = byId("chats-dialog");
    byId("chats-close").addEventListener("click", () => this.dialog.close());
  }

  open(currentId) {
    const chats = listChats();
    byId("chats").replaceChildren(...chats.map((chat) => this.row(chat, chat.id === currentId)));
    byId("chats-none").hidden = chats.length > 0;
    this.dialog.showModal();
  }

  row(chat, isCurrent) {
    const row = clone("chat-template");
    const [open, field] = [row.querySelector(".open"), row.querySelector("input")];
    open.querySelector(".name").textContent = nameOf(chat);
    open.querySelector(".time").textContent = day.format(chat.time);
    if (isCurrent) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => {
      this.dialog.close();
      this.onOpen(chat.id);
    });
    const showField = (isShown) => {
      [field.hidden, open.hidden] = [!isShown, isShown];
      (isShown ? field : open).focus();
    };
    row.querySelector(".rename").addEventListener("click", () => {
      field.value = nameOf(chat);
      showField(true);
      field.select();
    });
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault(); // Escape would close the list
      event.stopPropagation();
      if (event.key === "Escape") field.value = nameOf(chat);
      showField(false);
    });
    field.addEventListener("blur", () => {
      const name = field.value.trim();
      if (name && name !== nameOf(chat)) this.rename(chat, name);
      open.querySelector(".name").textContent = nameOf(chat);
      [field.hidden, open.hidden] = [true, false];
    });
    this.confirm(row.querySelector(".delete"), () => {
      removeChat(chat.id);
      this.onDelete(chat.id);
      row.remove();
      byId("chats-none").hidden = byId("chats").children.length > 0;
    });
    return row;
  }

  rename(chat, name) {
    chat.name = name;
    renameChat(chat.id, name);
    this.onRename(chat.id, name);
  }

  // What cannot be undone takes a second click.
  confirm(button, carryOut) {
    const label = button.textContent;
    button.addEventListener("click", () => {
      if (button.classList.toggle("sure")) button.textContent = `${label}?`;
      else carryOut();
    });
    button.addEventListener("blur", () => {
      button.classList.remove("sure");
      button.textContent = label;
    });
  }
}
