// Small settings of this browser. If storage is forbidden or full, they last as long as the page.

function read(storage, name) {
  try {
    return storage().getItem(name);
  } catch {
    return null;
  }
}

function write(storage, name, value) {
  try {
    if (value === null || value === "") storage().removeItem(name);
    else storage().setItem(name, value);
  } catch {
    // The caller keeps it in memory.
  }
}

const local = () => localStorage;
const session = () => sessionStorage;

/** Stored until this browser's data is cleared. */
export const inBrowser = {
  get: (name) => read(local, `ocs-${name}`),
  set: (name, value) => write(local, `ocs-${name}`, value),
};

/** Stored until this tab is closed. Other tabs do not see it. */
export const inTab = {
  get: (name) => read(session, `ocs-${name}`),
  set: (name, value) => write(session, `ocs-${name}`, value),
};
