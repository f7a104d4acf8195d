import { signal } from "@preact/signals";

/** What screen readers are told at their leisure. */
export const announced = signal("");

export function announce(text) {
  announced.value = announced.peek() === text ? `${text}\u00a0` : text;
}
