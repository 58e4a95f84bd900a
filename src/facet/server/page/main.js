// Connects the parts of the page: sends requests, and handles buttons and keys. The parts do not know each other.

import { keepKey, streamChat } from "./api.js";
import { Conversation } from "./conversation.js";
import { LivePanel } from "./live.js";
import { Settings, startTheme } from "./settings.js";

const byId = (id) => document.getElementById(id);
const [composer, message, keyDialog] = ["composer", "message", "key-dialog"].map(byId);

startTheme();
const settings = new Settings();
const conversation = new Conversation({ onRetry: retry, onResults: sendResults });
const live = new LivePanel({ onAnswer: showModel, onFailure: showFailure });
const isTouched = matchMedia("(pointer: coarse)");
let isKeyDeclined = false;
let asking = null; // an AbortController while an answer is on its way

function say(text) {
  byId("status").textContent = text;
}

function notice(text) {
  byId("notice").hidden = !text;
  byId("notice").textContent = text ?? "";
}

// Whether a request can be sent now; if not, the page says why.
function mayAsk() {
  if (asking) return false;
  const complaint = settings.complaint();
  notice(complaint);
  if (complaint) openCard(settings.toolsError ? "tools-card" : "settings-card");
  return !complaint;
}

async function ask() {
  const answer = conversation.startAnswer();
  const messages = [...settings.systemMessages(), ...conversation.wire()];
  setAsking(new AbortController());
  const { signal } = asking;
  try {
    await streamChat({ messages, ...settings.body() }, (chunk) => answer.take(chunk), signal);
    answer.close();
    say("The answer is complete.");
  } catch (error) {
    const isStopped = error.name === "AbortError";
    answer.close({ isStopped });
    if (isStopped) {
      say("Stopped.");
    } else {
      if (answer.isBlank) conversation.dropLastAnswer();
      conversation.addError(error.message);
    }
    if (error.status === 401) askForKey();
  } finally {
    setAsking(null);
    // Only if nothing else has the focus, and not on a phone, where it would open the keyboard.
    if (document.activeElement === document.body && !isTouched.matches) message.focus({ preventScroll: true });
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
  const text = message.value.trim();
  if (!text || !mayAsk()) return;
  if (conversation.waiting) {
    notice("The model is waiting for a tool result. Type it into the card above and send it, or start a new chat.");
    conversation.waiting.find("textarea").focus();
    return;
  }
  message.value = "";
  fitHeight();
  conversation.addUser(text);
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

function stop() {
  asking?.abort();
}

function clear() {
  stop();
  notice(null);
  conversation.clear();
  message.focus();
}

function fitHeight() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight}px`;
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
  byId("model").textContent = answer.model.name;
  byId("version").textContent = answer.model.version;
  byId("state").dataset.state = answer.requests.num_running ? "busy" : "ready";
  settings.showDefaults(answer.model.sampling_defaults);
}

function showFailure(error) {
  byId("model").textContent = error.message;
  byId("state").dataset.state = "lost";
  if (error.status === 401 && !isKeyDeclined) askForKey();
}

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
message.addEventListener("input", () => {
  fitHeight();
  notice(null);
});
message.addEventListener("keydown", (event) => {
  // While an input method is composing, Enter belongs to it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && asking) stop();
});
byId("stop").addEventListener("click", stop);
byId("clear").addEventListener("click", clear);
byId("tools-button").addEventListener("click", () => openCard("tools-card"));
byId("panel-button").addEventListener("click", () => showPanel(!document.body.classList.contains("shows-panel")));
byId("examples").addEventListener("click", (event) => {
  const example = event.target.closest("button");
  if (!example) return;
  if ("withTools" in example.dataset && !settings.tools.length) settings.useExampleTools();
  message.value = example.dataset.message;
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
message.focus({ preventScroll: true });
