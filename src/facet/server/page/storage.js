// Reads and writes the browser's storage, which may be switched off or full.

export function read(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

export function write(storage, name, value) {
  try {
    window[storage].setItem(name, value);
  } catch {
    // Settings are then not remembered.
  }
}
