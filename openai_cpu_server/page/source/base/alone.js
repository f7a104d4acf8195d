// What only one tab of this browser does at a time. Pages on plain HTTP of another machine have no locks.

/** Runs it unless another tab does so under this name, which gives it free when it is closed or loaded again. */
export function alone(name, run) {
  if (!navigator.locks) return run();
  return navigator.locks.request(`ocs-${name}`, { ifAvailable: true }, (lock) => lock && run());
}

/** Runs it where fewer than `most` are running under this name in all tabs. False: as many do, or the browser has no locks. */
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
