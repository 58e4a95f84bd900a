// Makes small pictures of large files. The browser decodes them beside the page, which stays responsive meanwhile.

const SIDE = 128; // pixels: twice what is shown, for sharp screens

// A data URL of a few kilobytes, or null where the browser cannot show such a file.
export async function makeThumbnail(kind, file) {
  const url = URL.createObjectURL(file);
  try {
    if (kind === "image") return await ofPicture(file, url);
    if (kind === "video") return await ofVideo(url);
  } catch {
    // a format that the browser does not know; the model may
  } finally {
    URL.revokeObjectURL(url);
  }
  return null;
}

async function ofPicture(file, url) {
  // Loading tells the size without decoding. Then only a small picture of the middle is made.
  const { naturalWidth: width, naturalHeight: height } = await loaded(new Image(), "load", url);
  return await square(file, width, height);
}

async function ofVideo(url) {
  const video = document.createElement("video");
  video.muted = true;
  await loaded(video, "loadeddata", url);
  return await square(video, video.videoWidth, video.videoHeight);
}

function loaded(element, event, url) {
  return new Promise((resolve, reject) => {
    element.addEventListener(event, () => resolve(element), { once: true });
    element.addEventListener("error", reject, { once: true });
    element.src = url;
  });
}

async function square(source, width, height) {
  const side = Math.min(width, height);
  const [left, top] = [Math.floor((width - side) / 2), Math.floor((height - side) / 2)];
  const options = { resizeWidth: SIDE, resizeHeight: SIDE, resizeQuality: "medium" };
  const bitmap = await createImageBitmap(source, left, top, side, side, options);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas.toDataURL("image/webp", 0.8);
}
