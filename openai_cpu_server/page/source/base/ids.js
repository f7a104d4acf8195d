/** A random id. Pages on plain HTTP lack crypto.randomUUID, but have this function. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(10));
  return Array.from(bytes, (byte) => byte.toString(36).padStart(2, "0")).join("");
}
