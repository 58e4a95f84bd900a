// The engine view: polls the server once a second while the page is visible, and draws the result.

import { liveView } from "./api.js";
import { byId } from "./elements.js";

const INTERVAL = 1000;
const NUM_SAMPLES = 60;
const GAP = 2;
const MAX_CELL = 14;
const KINDS = ["sliding", "global", "cached"];
const count = new Intl.NumberFormat("en");

export class LivePanel {
  // onAnswer gets every response and onFailure every error, for the rest of the page.
  constructor({ onAnswer, onFailure }) {
    this.onAnswer = onAnswer;
    this.onFailure = onFailure;
    this.last = null;
    this.samples = new Array(NUM_SAMPLES).fill(0);
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.look());
    document.addEventListener("themechange", () => this.drawArena());
    new ResizeObserver(() => this.drawArena()).observe(byId("arena"));
    this.look();
  }

  // Poll now, and again later while the page is visible.
  async look() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    const number = (this.number = (this.number ?? 0) + 1);
    try {
      const answer = await liveView();
      this.show(answer);
      this.onAnswer(answer);
    } catch (error) {
      this.onFailure(error);
    }
    if (number === this.number) this.timer = setTimeout(() => this.look(), INTERVAL);
  }

  show(answer) {
    const before = this.last;
    if (before && answer.seconds === before.seconds) return; // the same moment: another page asked just now
    // After a restart the counters begin again.
    const isNext = before && answer.seconds > before.seconds && answer.work.num_steps >= before.work.num_steps;
    this.last = answer;
    byId("running").textContent = count.format(answer.requests.num_running);
    byId("waiting").textContent = count.format(answer.requests.num_waiting);
    if (isNext) this.showRates(answer, before);
    const { num_prompt_tokens: asked, num_prompt_tokens_hit: hit } = answer.work;
    byId("prefix-hits").textContent = asked ? `${Math.round((100 * hit) / asked)}%` : "–";
    byId("prefix-hits").title = `${count.format(hit)} of ${count.format(asked)} prompt tokens were already computed`;
    this.showDrafts(answer.work);
    this.drawArena();
  }

  showDrafts({ num_drafts: drafted, num_accepted_drafts: accepted }) {
    byId("drafts").hidden = !drafted;
    if (!drafted) return;
    byId("drafts-right").textContent = `${Math.round((100 * accepted) / drafted)}%`;
    byId("drafts-right").title = `${count.format(accepted)} of ${count.format(drafted)} drafted tokens were accepted`;
  }

  showRates(answer, before) {
    const seconds = answer.seconds - before.seconds;
    const difference = (name) => answer.work[name] - before.work[name];
    const speed = difference("num_sampled_tokens") / seconds;
    const promptSpeed = (difference("num_computed_tokens") - difference("num_sampled_tokens")) / seconds;
    byId("tokens-per-second").textContent = count.format(Math.round(speed));
    byId("prompt-per-second").textContent = promptSpeed >= 1 ? `+ ${count.format(Math.round(promptSpeed))} prompt tokens/s` : "";
    const numSteps = difference("num_steps");
    if (numSteps > 0) byId("step-time").textContent = duration(difference("busy_seconds") / numSteps);
    this.samples = [...this.samples.slice(1), speed];
    drawSparkline(byId("sparkline"), this.samples);
  }

  drawArena() {
    if (!this.last) return;
    const { arena } = this.last;
    const counts = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
    for (const pages of arena.kinds) counts[pages.kind] = pages.num_pages;
    counts.free = arena.num_pages - arena.kinds.reduce((sum, pages) => sum + pages.num_pages, 0);
    for (const item of byId("legend").children) {
      item.querySelector("dd").textContent = count.format(counts[item.dataset.kind]);
    }
    byId("arena-size").textContent = `${count.format(arena.num_pages)} pages of ${bytes(arena.page_bytes)}`;
    const words = [...KINDS, "free"].map((kind) => `${counts[kind]} ${kind}`).join(", ");
    byId("arena").setAttribute("aria-label", `The ${arena.num_pages} pages of the KV cache: ${words}`);
    drawCells(byId("arena"), arena);
  }
}

function drawSparkline(svg, samples) {
  const top = Math.max(...samples, 1) * 1.08;
  const points = samples.map((value, at) => `${((at * 120) / (samples.length - 1)).toFixed(1)} ${(32 - (32 * value) / top).toFixed(1)}`);
  svg.querySelector(".line").setAttribute("d", `M${points.join("L")}`);
  svg.querySelector(".area").setAttribute("d", `M0 32L${points.join("L")}L120 32Z`);
}

// A cell is filled from below with the colours of its pages, in proportion.
function drawCells(canvas, arena) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width) return; // not shown
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  // Colours are taken from the legend, which follows the theme.
  const patches = [...byId("legend").children].map((item) => [item.dataset.kind, item.querySelector("i")]);
  const colours = Object.fromEntries(patches.map(([kind, patch]) => [kind, getComputedStyle(patch).backgroundColor]));
  const numCells = Math.ceil(arena.num_pages / arena.pages_per_cell);
  const numColumns = columnsFor(numCells, width, height);
  const size = Math.min((width + GAP) / numColumns - GAP, MAX_CELL);
  const shown = arena.kinds.filter((pages) => pages.kind in colours);
  for (let cell = 0; cell < numCells; cell++) {
    const x = (cell % numColumns) * (size + GAP);
    const y = Math.floor(cell / numColumns) * (size + GAP);
    const numPages = Math.min(arena.pages_per_cell, arena.num_pages - cell * arena.pages_per_cell);
    context.save();
    cut(context, x, y, size);
    context.clip();
    context.fillStyle = colours.free;
    context.fillRect(x, y, size, size);
    let bottom = y + size;
    for (const pages of shown) {
      if (!pages.cells[cell]) continue;
      // At least a line, so that one page among many is visible.
      const part = Math.max((size * pages.cells[cell]) / numPages, Math.min(2, size / 4));
      context.fillStyle = colours[pages.kind];
      context.fillRect(x, bottom - part, size, part);
      bottom -= part;
    }
    context.restore();
  }
}

// The fewest columns, and so the largest cells, with which all cells fit into the height.
function columnsFor(numCells, width, height) {
  let numColumns = Math.max(1, Math.floor((width + GAP) / (MAX_CELL + GAP)));
  const used = () => Math.ceil(numCells / numColumns) * ((width + GAP) / numColumns);
  while (used() > height + GAP && numColumns < numCells) numColumns++;
  return numColumns;
}

function cut(context, x, y, size) {
  const corner = size * 0.26;
  context.beginPath();
  context.moveTo(x + corner, y);
  context.lineTo(x + size - corner, y);
  context.lineTo(x + size, y + corner);
  context.lineTo(x + size, y + size - corner);
  context.lineTo(x + size - corner, y + size);
  context.lineTo(x + corner, y + size);
  context.lineTo(x, y + size - corner);
  context.lineTo(x, y + corner);
  context.closePath();
}

function duration(seconds) {
  const milliseconds = seconds * 1000;
  if (milliseconds >= 1000) return `${seconds.toFixed(1)} s`;
  return `${milliseconds >= 100 ? milliseconds.toFixed(0) : milliseconds.toFixed(1)} ms`;
}

function bytes(number) {
  const kibibytes = number / 1024;
  return kibibytes >= 1024 ? `${+(kibibytes / 1024).toFixed(1)} MiB` : `${+kibibytes.toFixed(1)} KiB`;
}
