// Encodes the body of a request. A File in it becomes a data URL, in slices between which the page can do other things:
// a photo of 20 MB is 27 million characters, too many to be handled at once.

const SLICE = 3 << 18; // bytes; a multiple of three, so that the slices' base64 can be joined

export async function encodeBody(value) {
  const files = [];
  // Stands for a file until the rest is encoded. Random, so that no message can hold it.
  const mark = `file:${crypto.getRandomValues(new Uint32Array(4)).join("-")}`;
  const json = JSON.stringify(value, (_, each) => (each instanceof File ? (files.push(each), mark) : each));
  if (!files.length) return json;
  const [first, ...others] = json.split(mark);
  const parts = [first];
  for (const [at, text] of others.entries()) {
    parts.push(`data:${files[at].type || "application/octet-stream"};base64,`);
    for await (const slice of base64(files[at])) parts.push(slice);
    parts.push(text);
  }
  return new Blob(parts);
}

async function* base64(file) {
  for (let start = 0; start < file.size; start += SLICE) {
    const url = await dataUrl(file.slice(start, start + SLICE));
    yield url.slice(url.indexOf(",") + 1);
  }
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
