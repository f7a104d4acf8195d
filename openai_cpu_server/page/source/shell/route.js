// Location within the page, by the address: #/chat, #/chat/ID, #/control.
import { signal } from "@preact/signals";

function read() {
  const [room, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return { room: room === "control" ? "control" : "chat", id: rest.join("/") || null };
}

export const route = signal(read());
addEventListener("hashchange", () => (route.value = read()));

/** `replace`: the previous address does not become an entry of the history. */
export function go(room, id, { replace } = {}) {
  const hash = `#/${room}${id ? `/${id}` : ""}`;
  if (location.hash === hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  route.value = read();
}
addEventListener("popstate", () => (route.value = read()));
