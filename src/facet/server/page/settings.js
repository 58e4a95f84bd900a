// The user's settings: theme, model, tools, sampling, system prompt. Kept in the browser's local storage where there is
// one.

import { byId } from "./elements.js";
import { read, readJson, write } from "./storage.js";
import { EXAMPLE, parseTools } from "./tools.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const REMEMBERED = [...NUMBERS, "system", "tools", "thinking"];
const STORE_NAME = "facet.settings";
const THEME_NAME = "facet.theme";

export class Settings {
  // onAdapterGone gets the name of an adapter that was in use until the server gave it up.
  constructor({ onAdapterGone }) {
    this.onAdapterGone = onAdapterGone;
    this.tools = [];
    this.toolsError = null;
    this.models = []; // as the select has them: the model itself, then its adapters
    const kept = readJson("localStorage", STORE_NAME) ?? {};
    this.chosen = String(kept.model ?? ""); // the name of an adapter; none means the model itself
    byId("models").addEventListener("input", () => {
      this.chosen = byId("models").value;
      this.changed();
    });
    for (const id of REMEMBERED) {
      if (id in kept) byId(id)[id === "thinking" ? "checked" : "value"] = kept[id];
      byId(id).addEventListener("input", () => this.changed());
    }
    byId("tools-example").addEventListener("click", () => this.useExampleTools());
    byId("tools-clear").addEventListener("click", () => this.setTools(""));
    byId("settings-reset").addEventListener("click", () => {
      for (const id of [...NUMBERS, "system"]) byId(id).value = "";
      this.changed();
    });
    this.changed();
  }

  useExampleTools() {
    this.setTools(JSON.stringify(EXAMPLE, null, 2));
  }

  setTools(text) {
    byId("tools").value = text;
    this.changed();
  }

  changed() {
    this.readTools();
    const entries = REMEMBERED.map((id) => [id, id === "thinking" ? byId(id).checked : byId(id).value]);
    write("localStorage", STORE_NAME, JSON.stringify({ ...Object.fromEntries(entries), model: this.chosen }));
  }

  readTools() {
    const message = byId("tools-message");
    try {
      [this.tools, this.toolsError] = [parseTools(byId("tools").value), null];
      const names = this.tools.map((tool) => tool.function.name).join(", ");
      message.textContent = names ? `Tools: ${names}.` : "No tools. Paste some in OpenAI's format, or use the example.";
    } catch (error) {
      [this.tools, this.toolsError] = [[], error.message];
      message.textContent = error.message;
    }
    message.classList.toggle("wrong", this.toolsError !== null);
    byId("tools").setAttribute("aria-invalid", String(this.toolsError !== null));
    byId("tools-count").textContent = this.toolsError ? "not valid" : this.tools.length || "none";
  }

  // A message about what is wrong with the settings, or null.
  complaint() {
    if (this.toolsError) return `The tools cannot be used. ${this.toolsError}`;
    const wrong = NUMBERS.map(byId).find((input) => !input.validity.valid);
    return wrong ? `${wrong.parentElement.firstChild.textContent}: ${wrong.validationMessage}` : null;
  }

  // The part of a request's body that the settings determine.
  body() {
    const body = { chat_template_kwargs: { enable_thinking: byId("thinking").checked } };
    for (const id of NUMBERS) if (byId(id).value !== "") body[id] = Number(byId(id).value);
    if (this.tools.length) body.tools = this.tools;
    if (this.adapter) body.model = this.adapter;
    return body;
  }

  // The adapter that is to answer; null means the model itself. A choice counts until the server has said what it has.
  get adapter() {
    const isThere = !this.models.length || this.models.indexOf(this.chosen, 1) > 0;
    return this.chosen && isThere ? this.chosen : null;
  }

  // Offers the model and its adapters. A choice that the server does not have is kept: it counts again once it is back.
  showModels(name, adapters) {
    const models = [name, ...adapters];
    // The select is left alone while nothing changes: it may be open.
    if (models.length === this.models.length && models.every((each, at) => each === this.models[at])) return;
    const before = this.models.length ? this.adapter : null;
    this.models = models;
    byId("models").replaceChildren(new Option(name, ""), ...adapters.map((adapter) => new Option(adapter)));
    byId("models").value = this.adapter ?? "";
    if (before && !this.adapter) this.onAdapterGone(before);
  }

  systemMessages() {
    const text = byId("system").value.trim();
    return text ? [{ role: "system", content: text }] : [];
  }

  // Shows the model's defaults in grey where the user gave no value.
  showDefaults(defaults) {
    for (const id of ["temperature", "top_p", "top_k"]) if (defaults[id] !== undefined) byId(id).placeholder = defaults[id];
  }
}

export function startTheme() {
  const root = document.documentElement;
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme ?? (isDark.matches ? "dark" : "light");
  const show = () => {
    byId("theme-button").setAttribute("aria-label", `Switch to the ${current() === "dark" ? "light" : "dark"} theme`);
    document.dispatchEvent(new Event("themechange"));
  };
  const kept = read("localStorage", THEME_NAME);
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  byId("theme-button").addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    write("localStorage", THEME_NAME, root.dataset.theme);
    show();
  });
  isDark.addEventListener("change", show);
  show();
}
