// Renders what stands inside a line of Markdown: code, bold, italics, links. A link leads only where the user can see it
// does, and opens beside the page without a way back into it.

const CODE = "`[^`\\n]+`";
const BOLD = "\\*\\*[^*\\n]+\\*\\*";
const ITALIC = "\\*(?=[^\\s*])[^*\\n]*[^\\s*]\\*|\\*[^\\s*]\\*";
const NAMED = "!?\\[[^\\[\\]\\n]+\\]\\([^\\s()]+(?:\\([^\\s()]*\\)[^\\s()]*)*\\)";
const BARE = "\\bhttps?:\\/\\/[^\\s<>`*\\[\\]|]+";
const INLINE = new RegExp(`(${[CODE, BOLD, ITALIC, NAMED, BARE].join("|")})`);
const SCHEMES = ["http:", "https:", "mailto:"];

export function addInline(parent, text) {
  // The parts at odd places are what matched.
  for (const [at, part] of text.split(INLINE).entries()) {
    if (at % 2 === 0) parent.append(part);
    else if (part.startsWith("`")) child(parent, "code").append(part.slice(1, -1));
    else if (part.startsWith("**")) addInline(child(parent, "strong"), part.slice(2, -2));
    else if (part.startsWith("*")) addInline(child(parent, "em"), part.slice(1, -1));
    else if (part.startsWith("http")) addBare(parent, part);
    else addNamed(parent, part);
  }
}

function child(parent, name) {
  const made = document.createElement(name);
  parent.append(made);
  return made;
}

// The end of a sentence is not part of the address in it, nor is the bracket that the address stands in.
function addBare(parent, text) {
  let address = text.replace(/[.,;:!?'"]+$/, "");
  if (address.endsWith(")") && !address.includes("(")) address = address.replace(/\)+[.,;:!?'"]*$/, "");
  addLink(parent, address, address);
  parent.append(text.slice(address.length));
}

// [words](address); of a picture only its words, as a link: looking at an answer must ask no other server.
function addNamed(parent, text) {
  const end = text.indexOf("](");
  addLink(parent, text.slice(text.indexOf("[") + 1, end), text.slice(end + 2, -1), text);
}

function addLink(parent, words, address, otherwise = words) {
  const url = URL.canParse(address) ? new URL(address) : null;
  // A user's name before the host looks like a host itself, and is there to mislead.
  if (!url || !SCHEMES.includes(url.protocol) || url.username || url.password) {
    parent.append(otherwise);
    return;
  }
  const link = child(parent, "a");
  link.href = url.href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  link.title = url.href;
  link.append(words);
}
