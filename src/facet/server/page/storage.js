// What the browser remembers, where it remembers anything: storage can be switched off, full, or hold old nonsense.

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
