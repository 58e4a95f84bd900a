// Finds and copies elements of the page.

export const byId = (id) => document.getElementById(id);
export const clone = (id) => byId(id).content.firstElementChild.cloneNode(true);
