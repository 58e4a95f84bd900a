// Keeps conversations in the browser's local storage: as many as there is room for, the oldest are given up first. Which
// one is open is kept for the tab.

import { names, read, readJson, remove, write } from "./storage.js";

const PREFIX = "facet.chat.";
const OPEN_NAME = "facet.open-chat";
const MAX_CHATS = 50;
const MAX_CHARACTERS = 2_000_000; // browsers give a page about five million
const NAME_LENGTH = 60;

// The chat that this tab had open before it was loaded again, or a new one.
export function openChat() {
  const id = read("sessionStorage", OPEN_NAME);
  return (id && readChat(id)) ?? newChat();
}

export function newChat() {
  const id = [...crypto.getRandomValues(new Uint32Array(3))].map((part) => part.toString(36)).join("");
  return { id, name: "", time: 0, messages: [] };
}

export function readChat(id) {
  const kept = readJson("localStorage", PREFIX + id);
  if (!Array.isArray(kept?.messages)) return null;
  return { id, name: String(kept.name ?? ""), time: Number(kept.time) || 0, messages: kept.messages.filter(isMessage) };
}

function isMessage(message) {
  return ["user", "assistant", "tool"].includes(message?.role) && typeof message.content === "string";
}

// All that are kept, the newest first.
export function listChats() {
  const ids = names("localStorage").filter((name) => name.startsWith(PREFIX)).map((name) => name.slice(PREFIX.length));
  const chats = ids.map(readChat).filter((chat) => chat?.messages.length);
  return chats.sort((one, other) => other.time - one.time);
}

export function markOpen(chat) {
  write("sessionStorage", OPEN_NAME, chat.id);
}

// Whether the chat is kept now; others may have been given up for it.
export function keepChat({ id, name, messages }) {
  if (!messages.length) return true;
  const text = JSON.stringify({ id, name, time: Date.now(), messages });
  if (text.length > MAX_CHARACTERS) return false;
  const left = [];
  let room = MAX_CHARACTERS - text.length;
  for (const chat of listChats().filter((other) => other.id !== id)) {
    room -= read("localStorage", PREFIX + chat.id).length;
    if (room >= 0 && left.length < MAX_CHATS - 1) left.push(chat.id);
    else removeChat(chat.id);
  }
  // Other pages of this server's address use the same storage, so there may be less room than that.
  while (!write("localStorage", PREFIX + id, text)) {
    if (!left.length) return false;
    removeChat(left.pop());
  }
  return true;
}

export function renameChat(id, name) {
  const chat = readChat(id);
  if (chat) write("localStorage", PREFIX + id, JSON.stringify({ ...chat, name }));
}

export function removeChat(id) {
  remove("localStorage", PREFIX + id);
}

// The name that the user gave it, else how it begins.
export function nameOf(chat) {
  if (chat.name) return chat.name;
  const first = chat.messages.find((message) => message.role === "user")?.content.trim() || "Chat";
  const line = first.split("\n")[0];
  return line.length > NAME_LENGTH ? `${line.slice(0, NAME_LENGTH)}…` : line;
}
