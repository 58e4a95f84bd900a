// Renders a model's text as elements: paragraphs, headings, lists, tables and code. Every element is made here and what
// the model wrote ends up in text nodes, so nothing of it can load or run.

import { addInline } from "./inline.js";

const FENCE = /^\s*(```|~~~)/;
const HEADING = /^#{1,6}\s+(.*)$/;
const BULLET = /^\s*[-*•]\s+(.*)$/;
const NUMBER = /^\s*(\d{1,9})[.)]\s+(.*)$/;
const RULE = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/; // the line below a table's head

function element(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) addInline(made, text);
  return made;
}

export function render(text) {
  const blocks = [];
  const lines = text.split("\n");
  let paragraph = [];
  let list = null;
  const endParagraph = () => {
    if (paragraph.length) blocks.push(element("p", paragraph.join("\n")));
    paragraph = [];
  };
  const add = (block) => {
    endParagraph();
    list = null;
    blocks.push(block);
  };
  const addItem = (kind, itemText, start) => {
    if (!list || list.localName !== kind) {
      add(element(kind));
      list = blocks.at(-1);
      if (start > 1) list.start = start;
    }
    list.append(element("li", itemText));
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const bullet = BULLET.exec(line);
    const number = NUMBER.exec(line);
    if (fence) {
      const code = [];
      // A fence that is not closed yet is code to the end: the rest has not arrived yet.
      while (++at < lines.length && lines[at].trim() !== fence[1]) code.push(lines[at]);
      const block = document.createElement("pre");
      block.append(code.join("\n"));
      add(block);
    } else if (isTable(line, lines[at + 1])) {
      const rows = [line];
      const sides = cells(lines[++at]).map(side);
      while (at + 1 < lines.length && lines[at + 1].includes("|")) rows.push(lines[++at]);
      add(table(rows.map(cells), sides));
    } else if (HEADING.test(line)) {
      add(element("h4", HEADING.exec(line)[1]));
    } else if (bullet) {
      addItem("ul", bullet[1]);
    } else if (number) {
      addItem("ol", number[2], Number(number[1]));
    } else if (!line.trim()) {
      endParagraph();
    } else {
      list = null;
      paragraph.push(line);
    }
  }
  endParagraph();
  return blocks;
}

function isTable(head, rule) {
  return head.includes("|") && rule !== undefined && RULE.test(rule.trim()) && cells(rule).length === cells(head).length;
}

// The cells of a line; a bar with a backslash before it belongs to its cell.
function cells(line) {
  const inside = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function side(rule) {
  if (!rule.endsWith(":")) return "";
  return rule.startsWith(":") ? "middle" : "right";
}

// In a box of its own: a wide table scrolls, the page does not.
function table([head, ...rows], sides) {
  const makeRow = (kind, row) => {
    const made = document.createElement("tr");
    for (const [column, name] of sides.entries()) {
      const cell = element(kind, row[column] ?? "");
      if (name) cell.className = name;
      made.append(cell);
    }
    return made;
  };
  const made = document.createElement("table");
  made.createTHead().append(makeRow("th", head));
  made.createTBody().append(...rows.map((row) => makeRow("td", row)));
  const box = document.createElement("div");
  box.className = "table";
  box.append(made);
  return box;
}
