// Renders a model's text as elements: paragraphs, headings, lists, code, bold. All of it ends up in text nodes; there
// are no links, images or HTML, so nothing that a model writes can load or run.

const FENCE = /^\s*(```|~~~)/;
const HEADING = /^#{1,6}\s+(.*)$/;
const BULLET = /^\s*[-*•]\s+(.*)$/;
const NUMBER = /^\s*(\d{1,9})[.)]\s+(.*)$/;
const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

function element(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) addInline(made, text);
  return made;
}

function addInline(parent, text) {
  for (const part of text.split(INLINE)) {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) {
      const code = document.createElement("code");
      code.append(part.slice(1, -1));
      parent.append(code);
    } else if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) {
      const bold = document.createElement("strong");
      bold.append(part.slice(2, -2));
      parent.append(bold);
    } else if (part) {
      parent.append(part);
    }
  }
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
  const addItem = (kind, itemText, start) => {
    endParagraph();
    if (!list || list.localName !== kind) {
      list = element(kind);
      if (start > 1) list.start = start;
      blocks.push(list);
    }
    list.append(element("li", itemText));
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const bullet = BULLET.exec(line);
    const number = NUMBER.exec(line);
    if (fence) {
      endParagraph();
      list = null;
      const code = [];
      // A fence that is not closed yet is code to the end: the rest has not arrived yet.
      while (++at < lines.length && lines[at].trim() !== fence[1]) code.push(lines[at]);
      const block = document.createElement("pre");
      block.append(code.join("\n"));
      blocks.push(block);
    } else if (HEADING.test(line)) {
      endParagraph();
      list = null;
      blocks.push(element("h4", HEADING.exec(line)[1]));
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
