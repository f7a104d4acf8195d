// Work that only one tab of this browser does at a time. Pages on plain HTTP from another machine have no locks.

/** Runs it unless another tab does under this name. A tab releases the name when it is closed or reloaded. */
export function alone(name, run) {
  if (!navigator.locks) return run();
  return navigator.locks.request(`ocs-${name}`, { ifAvailable: true }, (lock) => lock && run());
}

/** Runs it if fewer than `most` run under this name in all tabs. Returns false otherwise, or without locks. */
export async function amongFew(name, most, run) {
  if (!navigator.locks) return false;
  for (let place = 0; place < most; place++) {
    const ran = await navigator.locks.request(`ocs-${name}-${place}`, { ifAvailable: true }, (lock) => lock && run().then(() => true));
    if (ran) return true;
  }
  return false;
}

const LOOK_EVERY_MS = 200;

/** Runs it as soon as fewer than `most` are running under this name. Raises an AbortError after `signal`. */
export async function amongFewInTurn(name, most, signal, run) {
  if (!navigator.locks) return run();
  while (!(await amongFew(name, most, run))) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    signal.throwIfAborted();
  }
}
