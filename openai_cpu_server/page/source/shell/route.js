// Where the page is, as the address says: #/chat, #/chat/ID, #/control.
import { signal } from "@preact/signals";

function read() {
  const [room, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return { room: room === "control" ? "control" : "chat", id: rest.join("/") || null };
}

export const route = signal(read());
addEventListener("hashchange", () => (route.value = read()));

/** `replace`: the address before is not worth coming back to. */
export function go(room, id, { replace } = {}) {
  const hash = `#/${room}${id ? `/${id}` : ""}`;
  if (location.hash === hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  route.value = read();
}
addEventListener("popstate", () => (route.value = read()));
