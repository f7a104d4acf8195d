import { signal } from "@preact/signals";

/** Text that screen readers announce politely. */
export const announced = signal("");

export function announce(text) {
  announced.value = announced.peek() === text ? `${text}\u00a0` : text;
}
