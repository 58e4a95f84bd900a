// Copies text to the clipboard.

const SHOWN_FOR = 1500; // milliseconds

export function copyButton(button, text) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = label), SHOWN_FOR);
  });
}

// Browsers offer the clipboard only to pages over HTTPS or from this machine. Elsewhere the older way works.
async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed here; the other way may be
    }
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}
