// Reads and writes the browser's storage, which may be switched off or full.

export function read(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

// The object or list that was kept as JSON, or null. What another page left there may be anything.
export function readJson(storage, name) {
  try {
    const value = JSON.parse(read(storage, name));
    return typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}

// Whether there was room.
export function write(storage, name, value) {
  try {
    window[storage].setItem(name, value);
    return true;
  } catch {
    return false;
  }
}

export function remove(storage, name) {
  try {
    window[storage].removeItem(name);
  } catch {
    // Then it was never kept.
  }
}

export function names(storage) {
  try {
    return Object.keys(window[storage]);
  } catch {
    return [];
  }
}
