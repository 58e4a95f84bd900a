// Connects the parts of the page: sends requests, keeps conversations, and handles buttons and keys. The parts do not
// know each other.

import { keepKey, streamChat } from "./api.js";
import { ChatList } from "./chat_list.js";
import { keepChat, markOpen, newChat, openChat, readChat } from "./chats.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { byId } from "./elements.js";
import { LivePanel } from "./live.js";
import { Settings, startTheme } from "./settings.js";

startTheme();
const keyDialog = byId("key-dialog");
const settings = new Settings({ onAdapterGone: sayGone });
const composer = new Composer({ onSend: send });
const conversation = new Conversation({ onRetry: retry, onResults: sendResults, onEdit: edit });
const chatList = new ChatList({ onOpen: (id) => switchTo(readChat(id)), onRename: rename, onDelete: forget });
const live = new LivePanel({ onAnswer: showModel, onFailure: showFailure });
const isTouched = matchMedia("(pointer: coarse)");
let isKeyDeclined = false;
let asking = null; // an AbortController while an answer is on its way
let chat = null; // what is kept of the conversation

function say(text) {
  byId("status").textContent = text;
}

// Whether a request can be sent now; if not, the page says why.
function mayAsk() {
  if (asking) return false;
  const complaint = settings.complaint();
  composer.notice(complaint);
  if (complaint) openCard(settings.toolsError ? "tools-card" : "settings-card");
  return !complaint;
}

async function ask() {
  const asked = chat;
  const answer = conversation.startAnswer(settings.adapter);
  const messages = [...settings.systemMessages(), ...conversation.wire()];
  keep();
  setAsking(new AbortController());
  const { signal } = asking;
  try {
    await streamChat({ messages, ...settings.body() }, (chunk) => answer.take(chunk), signal);
    answer.close();
    say("The answer is complete.");
  } catch (error) {
    const isStopped = error.name === "AbortError";
    answer.close(isStopped ? "stopped" : "interrupted");
    if (isStopped) {
      say("Stopped.");
    } else if (asked === chat) {
      if (answer.isBlank) conversation.dropLastAnswer();
      conversation.addError(error.message);
    }
    if (error.status === 401) askForKey();
  } finally {
    setAsking(null);
    if (asked === chat) keep();
    // Only if nothing else has the focus, and not on a phone, where it would open the keyboard.
    if (document.activeElement === document.body && !isTouched.matches) composer.focus();
  }
}

function setAsking(controller) {
  asking = controller;
  byId("stop").hidden = !asking;
  byId("send").hidden = Boolean(asking);
  byId("conversation").setAttribute("aria-busy", String(Boolean(asking)));
  if (asking) say("Answering.");
}

function send() {
  if (composer.isEmpty || !mayAsk()) return;
  if (conversation.waiting && !composer.editing) {
    composer.notice(
      "The model is waiting for a tool result. Type it into the card above and send it, or start a new chat.",
    );
    conversation.waiting.find("textarea").focus();
    return;
  }
  if (composer.editing) conversation.cutFrom(composer.editing);
  conversation.addUser(composer.text, composer.attachments);
  composer.clear();
  ask();
}

function sendResults(answer, results) {
  if (!mayAsk()) return;
  answer.keepResults();
  conversation.addResults(results);
  ask();
}

function retry() {
  if (!mayAsk()) return;
  conversation.dropLastAnswer();
  if (!conversation.isEmpty) ask();
}

function edit(view) {
  if (!asking) composer.edit(view);
}

function stop() {
  asking?.abort();
}

// After every change of the conversation, except the parts of an answer as they come.
function keep() {
  chat.messages = conversation.stored();
  if (!keepChat(chat)) composer.notice("The browser has no room for this conversation: it will be gone after a reload.");
}

// What an answer has so far, before nobody sees the rest of it.
function keepRunning() {
  if (asking) keep();
}

function switchTo(other) {
  if (!other || other.id === chat.id) return;
  keepRunning();
  stop();
  show(other);
}

function show(other) {
  chat = other;
  markOpen(chat);
  composer.notice(null);
  composer.setEditing(null);
  try {
    conversation.show(chat.messages);
  } catch {
    show(newChat()); // kept by another version of the page
  }
}

function startChat() {
  switchTo(newChat());
  composer.focus();
}

function rename(id, name) {
  if (id === chat.id) chat.name = name;
}

function forget(id) {
  if (id !== chat.id) return;
  stop();
  show(newChat());
}

function openCard(id) {
  showPanel(true);
  const card = byId(id);
  card.open = true;
  const field = card.querySelector("textarea");
  field.focus();
  field.setSelectionRange(0, 0);
  field.scrollTop = 0;
  card.scrollIntoView({ block: "nearest" });
}

function showPanel(isShown) {
  document.body.classList.toggle("shows-panel", isShown);
  byId("panel-button").setAttribute("aria-expanded", String(isShown));
  byId("panel-button").textContent = isShown ? "Chat" : "Engine";
  byId("panel-button").setAttribute("aria-label", isShown ? "Back to the chat" : "Engine and settings");
}

function askForKey() {
  if (!keyDialog.open) keyDialog.showModal();
}

function showModel(answer) {
  const { name, adapters = [] } = answer.model;
  settings.showModels(name, adapters);
  showHead(name, adapters.length > 0);
  byId("version").textContent = answer.model.version;
  byId("state").dataset.state = answer.requests.num_running ? "busy" : "ready";
  settings.showDefaults(answer.model.sampling_defaults);
  composer.tray.setKinds(answer.model.media);
}

// A text, or the choice among the models instead.
function showHead(text, hasChoice) {
  byId("model").textContent = text;
  byId("model").hidden = hasChoice;
  byId("model-choice").hidden = !hasChoice;
}

function showFailure(error) {
  showHead(error.message, false);
  byId("state").dataset.state = "lost";
  if (error.status === 401 && !isKeyDeclined) askForKey();
}

function sayGone(adapter) {
  composer.notice(`The server no longer has the adapter ${adapter}. The model answers without it.`);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && asking && !document.querySelector("dialog[open]")) stop();
});
// Before a reload, and before a phone ends a page that it has put aside.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) keepRunning();
});
addEventListener("pagehide", keepRunning);
byId("stop").addEventListener("click", stop);
byId("new-chat").addEventListener("click", startChat);
byId("chats-button").addEventListener("click", () => chatList.open(chat.id));
byId("tools-button").addEventListener("click", () => openCard("tools-card"));
byId("panel-button").addEventListener("click", () => showPanel(!document.body.classList.contains("shows-panel")));
byId("examples").addEventListener("click", (event) => {
  const example = event.target.closest("button");
  if (!example) return;
  if ("withTools" in example.dataset && !settings.tools.length) settings.useExampleTools();
  composer.fill(example.dataset.message);
  send();
});
keyDialog.addEventListener("cancel", () => (byId("key").value = ""));
keyDialog.addEventListener("close", () => {
  const key = byId("key").value;
  byId("key").value = "";
  isKeyDeclined = !key;
  if (!key) return;
  keepKey(key);
  live.look();
});
show(openChat());
composer.focus();
